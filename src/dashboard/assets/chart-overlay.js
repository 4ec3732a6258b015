// What is drawn over the candles: rules with the side they fire on, where they fired, and how far time is settled.

/** Within this share of the candles' range, a rule widens the scale; further away it does not. */
export const REACH = 0.35;

/** The hatch of the side on which a level rule fires. */
function hatch(context, colour, ratio) {
  const tile = document.createElement('canvas');
  tile.width = tile.height = Math.round(8 * ratio);
  const pen = tile.getContext('2d');
  pen.strokeStyle = colour;
  pen.globalAlpha = 0.18;
  pen.lineWidth = ratio;
  pen.beginPath();
  for (const shift of [-tile.width, 0, tile.width]) {
    pen.moveTo(shift, tile.height);
    pen.lineTo(shift + tile.width, 0);
  }
  pen.stroke();
  return context.createPattern(tile, 'repeat');
}

class Pane {
  constructor(overlay, order, draw) {
    Object.assign(this, { overlay, order, drawOn: draw });
  }

  zOrder() {
    return this.order;
  }

  renderer() {
    return {
      draw: (target) =>
        target.useBitmapCoordinateSpace((scope) => {
          scope.context.save();
          this.drawOn.call(this.overlay, scope);
          scope.context.restore();
        }),
    };
  }
}

/** A primitive of the library; `show` gives it what to draw. */
export class Overlay {
  #chart = null;
  #series = null;
  #redraw = () => {};
  #panes = [new Pane(this, 'normal', this.#drawRules), new Pane(this, 'top', this.#drawMarks)];
  what = { rules: [], marks: [], settled: null, colours: {}, labels: true };

  attached({ chart, series, requestUpdate }) {
    [this.#chart, this.#series, this.#redraw] = [chart, series, requestUpdate];
  }

  paneViews() {
    return this.#panes;
  }

  show(what) {
    Object.assign(this.what, what);
    this.#redraw();
  }

  #drawRules({ context, bitmapSize: { width, height }, horizontalPixelRatio: across, verticalPixelRatio: down }) {
    const { rules, colours } = this.what;
    for (const rule of rules) {
      const at = this.#series.priceToCoordinate(rule.threshold);
      if (at == null || at < 0 || at * down > height) continue;
      const y = Math.round(at * down);
      if (rule.trigger === 'level' && rule.op !== '=') {
        context.fillStyle = hatch(context, colours.accent, across);
        const above = rule.op.startsWith('>');
        context.fillRect(0, above ? 0 : y, width, above ? y : height - y);
      }
      context.strokeStyle = colours.accent;
      context.lineWidth = Math.max(1, Math.floor(across));
      context.setLineDash(rule.trigger === 'level' ? [6 * across, 3 * across] : []);
      context.beginPath();
      context.moveTo(0, y + 0.5);
      context.lineTo(width, y + 0.5);
      context.stroke();
    }
  }

  #drawMarks({ context, bitmapSize: { height }, horizontalPixelRatio: across, verticalPixelRatio: down }) {
    const { marks, settled, colours, labels } = this.what;
    if (settled) this.#drawSettled(context, settled, height, across);
    context.fillStyle = colours.accent;
    context.strokeStyle = colours.surface;
    context.lineWidth = 1.5 * across;
    context.setLineDash([]);
    for (const mark of marks) {
      const x = this.#chart.timeScale().timeToCoordinate(mark.time);
      const y = this.#series.priceToCoordinate(mark.price);
      if (x == null || y == null) continue;
      const [cx, cy, size] = [x * across, y * down, 5 * across];
      context.beginPath();
      if (mark.trigger === 'level') context.rect(cx - size * 0.9, cy - size * 0.9, size * 1.8, size * 1.8);
      else {
        const tip = mark.op.startsWith('<') ? 1.2 : -1.2;
        context.moveTo(cx, cy + tip * size);
        context.lineTo(cx + 1.1 * size, cy - tip * size * 0.67);
        context.lineTo(cx - 1.1 * size, cy - tip * size * 0.67);
        context.closePath();
      }
      context.stroke();
      context.fill();
    }
    if (!labels) return;
    context.fillStyle = colours.ink3;
    context.font = `${11 * across}px ${colours.font}`;
    const { above, below } = this.what;
    const many = (count) => `${count} more rule${count === 1 ? '' : 's'}`;
    if (above) context.fillText(`↑ ${many(above)} above`, 10 * across, 15 * down);
    if (below) context.fillText(`↓ ${many(below)} below`, 10 * across, height * 0.8);
  }

  /** Left of the line candles are final, right of it they are open: until the watermark, never until a time of day. */
  #drawSettled(context, { time, shift, words }, height, across) {
    const { colours, labels } = this.what;
    const at = this.#chart.timeScale().timeToCoordinate(time);
    if (at == null) return;
    const x = Math.round((at + shift * this.#chart.timeScale().options().barSpacing) * across);
    context.strokeStyle = context.fillStyle = colours.ink3;
    context.lineWidth = Math.max(1, Math.floor(across));
    context.setLineDash([3 * across, 3 * across]);
    context.beginPath();
    context.moveTo(x + 0.5, 0);
    context.lineTo(x + 0.5, height);
    context.stroke();
    context.font = `${11 * across}px ${colours.font}`;
    context.textAlign = 'right';
    context.fillText('final', x - 7 * across, 15 * across);
    context.textAlign = 'left';
    if (words) context.fillText(labels ? words : 'open', x + 7 * across, 15 * across);
  }
}
