// The chart: candles, volume, and what the overlay draws; rules as handles that can be moved where writes are allowed.

import { ColorType, CrosshairMode, HistogramSeries, createChart } from './vendor/lightweight-charts.js';
import { CandleSeries } from './candle-series.js';
import { Overlay, REACH } from './chart-overlay.js';
import { $, glyph, h, keyed, put, set } from './dom.js';
import { OPERATORS, clock, decimal, decimals } from './format.js';

/** Below this width names are left out, and handles move to the left edge so that candles keep the width. */
const NARROW = 600;
/** Candles at first, by width. */
const BAR = 11;

/** The page's tokens as the canvas needs them: computed. */
function colours() {
  const probe = h('span');
  document.body.append(probe);
  const computed = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  const names = { up: 'up', down: 'down', surface: 'surface', ink: 'ink', ink2: 'ink-2', ink3: 'ink-3', line: 'line', accent: 'accent' };
  const found = Object.fromEntries(Object.entries(names).map(([key, name]) => [key, computed(name)]));
  found.font = getComputedStyle(document.body).fontFamily;
  probe.remove();
  return found;
}

const faint = (colour) => colour.replace(/^rgb\((.*)\)$/, 'rgba($1, 0.28)');

export function chart(root, { onHover, onMove }) {
  const frame = $('#chart', root);
  const pills = $('#pills', root);
  let tokens = colours();
  let candles = [];
  let known = new Map();
  let rules = [];
  let settings = { writes: false, interval: 60000, digits: null };
  let narrow = frame.clientWidth < NARROW;

  const made = createChart(frame, {
    autoSize: true,
    layout: { attributionLogo: false, fontSize: 11 },
    crosshair: { mode: CrosshairMode.Magnet },
    timeScale: { timeVisible: true, secondsVisible: true, barSpacing: BAR, borderVisible: true },
    rightPriceScale: { scaleMargins: { top: 0.06, bottom: 0.2 } },
    localization: { locale: 'en-US' },
    handleScroll: { vertTouchDrag: false },
  });
  const series = made.addCustomSeries(new CandleSeries(), { autoscaleInfoProvider: scale });
  const volume = made.addSeries(HistogramSeries, { priceScaleId: '', lastValueVisible: false, priceLineVisible: false, priceFormat: { type: 'volume' } });
  volume.priceScale().applyOptions({ scaleMargins: { top: 0.86, bottom: 0 } });
  const overlay = new Overlay();
  series.attachPrimitive(overlay);

  /** A rule a little off the candles widens the scale; one far off does not. */
  function scale(original) {
    const info = original();
    if (!info?.priceRange) return info;
    let { minValue: low, maxValue: high } = info.priceRange;
    const reach = (high - low) * REACH;
    const near = rules.map((rule) => rule.threshold).filter((price) => price > low - reach && price < high + reach);
    return { ...info, priceRange: { minValue: Math.min(low, ...near), maxValue: Math.max(high, ...near) } };
  }

  function paint() {
    tokens = colours();
    made.applyOptions({
      layout: { background: { type: ColorType.Solid, color: tokens.surface }, textColor: tokens.ink3, fontFamily: tokens.font },
      grid: { vertLines: { color: tokens.line }, horzLines: { color: tokens.line } },
      rightPriceScale: { borderColor: tokens.line },
      timeScale: { borderColor: tokens.line },
      crosshair: { vertLine: { color: tokens.ink3, labelBackgroundColor: tokens.ink2 }, horzLine: { color: tokens.ink3, labelBackgroundColor: tokens.ink2 } },
    });
    series.applyOptions({ colours: tokens, priceLineColor: tokens.ink2, color: tokens.ink });
    overlay.show({ colours: tokens });
    volume.setData(candles.map(volumeBar));
  }

  const bar = (candle) => ({ ...candle, time: candle.start / 1000 });
  const volumeBar = (candle) => ({ time: candle.start / 1000, value: candle.volume, color: faint(tokens.ink3) });

  /** Only what changed is handed over; anything but the newest makes it all anew. */
  function drawCandles(next) {
    const changed = next.filter((candle) => known.get(candle.start) !== candle.key);
    const newest = candles.at(-1)?.start ?? -Infinity;
    const onlyNewest = changed.every((candle) => candle.start >= newest) && next[0]?.start === candles[0]?.start;
    candles = next;
    known = new Map(next.map((candle) => [candle.start, candle.key]));
    if (!changed.length) return;
    if (onlyNewest) {
      for (const candle of changed) {
        series.update(bar(candle));
        volume.update(volumeBar(candle));
      }
      return;
    }
    const first = !series.data().length;
    series.setData(next.map(bar));
    volume.setData(next.map(volumeBar));
    if (first) made.timeScale().applyOptions({ barSpacing: narrow ? 8 : BAR, rightOffset: narrow ? 3 : 16 });
  }

  function settledAt(watermark) {
    if (watermark == null || !candles.length) return null;
    const open = candles.find((candle) => candle.start + settings.interval > watermark);
    if (!open) return { time: candles.at(-1).start / 1000, shift: 0.5, words: '' };
    const last = candles.at(-1);
    return { time: open.start / 1000, shift: -0.5, words: `open until watermark ${clock(last.start + settings.interval)}` };
  }

  function place() {
    narrow = frame.clientWidth < NARROW;
    overlay.show({ labels: !narrow });
    pills.style.right = narrow ? '' : `${made.priceScale('right').width() + 6}px`;
    const bottom = frame.clientHeight * 0.83;
    const seen = [];
    let [above, below] = [0, 0];
    for (const rule of rules) {
      const y = series.priceToCoordinate(rule.threshold);
      if (y == null) continue;
      if (y < 8) above += 1;
      else if (y > bottom) below += 1;
      else seen.push({ ...rule, y });
    }
    overlay.show({ above, below });
    // Handles that would cover each other: the one nearest to the price is shown.
    const shown = [];
    for (const rule of seen) if (shown.every((other) => Math.abs(other.y - rule.y) > 21)) shown.push(rule);
    keyed(pills, shown.sort((a, b) => a.y - b.y).map((rule) => [rule.key, rule]), (key) => pill(key));
  }

  /** What an arrow key moves a threshold by: about a pixel, and no less than prices differ by. */
  function step() {
    const least = 10 ** -settings.digits;
    const pixel = Math.abs(series.coordinateToPrice(1) - series.coordinateToPrice(0));
    return Math.max(1, Math.round(pixel / least)) * least;
  }

  function pill() {
    const words = h('span', { class: 'pr' });
    const name = h('span', { class: 'el' });
    const element = h('div', { class: 'pill', role: 'slider', 'aria-orientation': 'vertical' }, glyph('grip'), words, name);
    let rule = null;
    let moved = null;
    const show = (price) => {
      put(words, `${OPERATORS[rule.op]} ${decimal(price)}`);
      set(element, { 'aria-valuenow': price, 'aria-valuetext': `${OPERATORS[rule.op]} ${price}` });
    };
    const move = (y, price = series.coordinateToPrice(y)) => {
      if (price == null || y == null) return;
      moved = { price: price.toFixed(settings.digits), y };
      element.style.transform = `translateY(${Math.round(y - 11)}px)`;
      set(element, { class: 'pill moving' });
      show(moved.price);
    };
    const end = (keep) => {
      if (moved && keep && moved.price !== rule.text) onMove(rule, moved.price);
      moved = null;
      element.update(rule);
    };
    element.addEventListener('pointerdown', (event) => {
      if (!settings.writes || event.button) return;
      element.setPointerCapture(event.pointerId);
      const from = event.clientY - rule.y;
      const follow = (moving) => move(moving.clientY - from);
      element.addEventListener('pointermove', follow);
      element.addEventListener('lostpointercapture', () => {
        element.removeEventListener('pointermove', follow);
        end(true);
      }, { once: true });
    });
    element.addEventListener('keydown', (event) => {
      if (!settings.writes) return;
      const steps = { ArrowUp: 1, ArrowDown: -1, PageUp: 10, PageDown: -10 }[event.key];
      if (steps) {
        const price = Number(moved?.price ?? rule.text) + steps * step();
        move(series.priceToCoordinate(price), price);
      }
      else if (event.key === 'Enter') end(true);
      else if (event.key === 'Escape') end(false);
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    element.addEventListener('blur', () => end(false));
    element.update = (next) => {
      rule = next;
      if (moved) return;
      const { writes } = settings;
      set(element, {
        class: writes ? 'pill' : 'pill ro',
        tabindex: writes ? '0' : '-1',
        'aria-label': `Rule ${rule.id}, threshold`,
        'aria-readonly': writes ? null : 'true',
        title: writes ? `${rule.id}: drag, or use the arrow keys and Enter, to move the threshold` : `${rule.id}: read-only; start with --allow-writes to move it`,
      });
      element.style.transform = `translateY(${Math.round(rule.y - 11)}px)`;
      put(name, rule.id);
      show(rule.text);
    };
    return element;
  }

  made.subscribeCrosshairMove(({ time }) => {
    const candle = time == null ? candles.at(-1) : candles.find((candle) => candle.start / 1000 === time);
    if (candle) onHover(candle);
  });
  made.timeScale().subscribeVisibleLogicalRangeChange(() => requestAnimationFrame(place));
  new ResizeObserver(() => requestAnimationFrame(place)).observe(frame);
  addEventListener('themechange', () => requestAnimationFrame(paint));
  paint();

  return {
    show({ candles: next, rules: wanted, marks, watermark, price, interval, writes }) {
      const digits = Math.max(...[price, ...next.slice(-20).map((candle) => candle.texts[3])].map(decimals), 0);
      if (digits !== settings.digits) {
        series.applyOptions({ priceFormat: { type: 'price', precision: digits, minMove: 10 ** -digits } });
      }
      settings = { writes, interval, digits };
      made.applyOptions({ timeScale: { secondsVisible: interval < 60000 } });
      rules = wanted;
      drawCandles(next);
      overlay.show({ rules, marks, settled: settledAt(watermark) });
      requestAnimationFrame(place);
    },
  };
}
