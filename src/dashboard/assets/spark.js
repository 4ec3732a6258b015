// A line as long as its data.

import { s, set } from './dom.js';

/** A line of `width` by `height`; `update(values, dot)` draws it. */
export function spark(width, height, stretched = false) {
  const area = s('path', { class: 'a' });
  const line = s('path');
  const dot = s('circle', { r: '2.2', visibility: 'hidden' });
  const box = { class: 'spark', width, height, viewBox: `0 0 ${width} ${height}`, 'aria-hidden': 'true' };
  const svg = s('svg', stretched ? { ...box, preserveAspectRatio: 'none' } : box, area, line, dot);
  svg.update = (values, withDot = !stretched) => {
    if (!values || values.length < 2) return set(line, { d: '' }), set(area, { d: '' }), set(dot, { visibility: 'hidden' });
    const low = Math.min(...values);
    const span = Math.max(...values) - low || 1;
    const flat = Math.max(...values) === low;
    const x = (at) => ((at / (values.length - 1)) * (width - 3)).toFixed(1);
    const y = (value) => (flat ? height / 2 : height - 3 - ((value - low) / span) * (height - 6)).toFixed(1);
    const path = values.map((value, at) => `${at ? 'L' : 'M'}${x(at)} ${y(value)}`).join('');
    set(line, { d: path });
    set(area, { d: `${path}V${height}H0Z` });
    set(dot, withDot
      ? { visibility: 'visible', cx: x(values.length - 1), cy: y(values.at(-1)) }
      : { visibility: 'hidden' });
  };
  return svg;
}
