// Candles as the chart draws them: up hollow, down filled, open dashed, revised with a diamond below.

/** Height of a revision's diamond, and its distance from the candle. */
const DIAMOND = 4.5;
const BELOW = 9;

class Renderer {
  #data = null;
  #colours = null;

  take(data, options) {
    this.#data = data;
    this.#colours = options.colours;
  }

  draw(target, toY) {
    const { bars, visibleRange, barSpacing } = this.#data ?? {};
    if (!bars?.length || !visibleRange) return;
    target.useBitmapCoordinateSpace(({ context, horizontalPixelRatio: across, verticalPixelRatio: down }) => {
      const line = Math.max(1, Math.floor(across));
      const wide = Math.max(3, Math.round(barSpacing * 0.62)) * across;
      const half = Math.max(1, Math.floor(wide / 2));
      for (let at = visibleRange.from; at < visibleRange.to; at++) {
        const bar = bars[at];
        const candle = bar.originalData;
        const x = Math.round(bar.x * across);
        const [open, high, low, close] = [candle.open, candle.high, candle.low, candle.close].map((price) => Math.round(toY(price) * down));
        this.#candle(context, candle, { x, half, line, open, high, low, close });
        if (candle.revision > 0) this.#diamond(context, x, low + BELOW * down, DIAMOND * across, line);
      }
    });
  }

  #candle(context, candle, { x, half, line, open, high, low, close }) {
    const up = candle.close >= candle.open;
    const colour = up ? this.#colours.up : this.#colours.down;
    const [top, bottom] = [Math.min(open, close), Math.max(open, close)];
    context.save();
    context.strokeStyle = context.fillStyle = colour;
    context.lineWidth = line;
    const crisp = line % 2 ? 0.5 : 0;
    if (candle.status === 'open') context.setLineDash([2.6 * line, 2 * line]);
    context.beginPath();
    context.moveTo(x + crisp, high);
    context.lineTo(x + crisp, top);
    context.moveTo(x + crisp, bottom);
    context.lineTo(x + crisp, low);
    context.stroke();
    const box = [x - half + crisp, top + crisp, 2 * half, Math.max(line, bottom - top)];
    if (!up) {
      context.globalAlpha = candle.status === 'open' ? 0.22 : 1;
      context.fillRect(...box);
      context.globalAlpha = 1;
    }
    context.strokeRect(...box);
    context.restore();
  }

  #diamond(context, x, y, size, line) {
    context.beginPath();
    context.moveTo(x, y - size);
    context.lineTo(x + size, y);
    context.lineTo(x, y + size);
    context.lineTo(x - size, y);
    context.closePath();
    context.fillStyle = this.#colours.surface;
    context.strokeStyle = this.#colours.ink;
    context.lineWidth = 1.3 * line;
    context.fill();
    context.stroke();
  }
}

/** The custom series of the library. */
export class CandleSeries {
  #renderer = new Renderer();

  renderer() {
    return this.#renderer;
  }

  update(data, options) {
    this.#renderer.take(data, options);
  }

  priceValueBuilder({ high, low, close }) {
    return [high, low, close];
  }

  isWhitespace(data) {
    return data.close === undefined;
  }

  defaultOptions() {
    return { colours: {} };
  }
}
