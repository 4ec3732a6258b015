package tickwatch.peers;

/** A candle and its window; times in ms. */
record Candle(long intervalMs, long start, Ohlc ohlc) {
    long end() {
        return start + intervalMs;
    }
}
