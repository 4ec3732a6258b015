// The view of the whole group.

import { $, h, put, set } from './dom.js';
import { number, sentence } from './format.js';
import { feed } from './feed.js';
import { firstSteps } from './first-steps.js';
import { partitions } from './partitions.js';
import { spark } from './spark.js';
import { symbols } from './symbols.js';
import { verdict } from './verdict.js';
import { workers } from './workers.js';

const NUMBERS = {
  tps: ['Ticks/s', 0, ''],
  nps: ['Notifications/s', 1, ''],
  late: ['Late ratio', 2, '\u2009%'],
  lag: ['Lag, records', 0, ''],
  windows: ['Open windows', 0, ''],
  outbox: ['Outbox, entries', 0, ''],
};

function headline(root) {
  const panel = $('#kpis', root);
  const tiles = Object.entries(NUMBERS).map(([name, [label, digits, unit]]) => {
    const value = h('span', { id: `k-${name}` });
    const line = spark(104, 30);
    const note = h('p', { class: 'el' });
    const tile = h('div', { class: 'kpi' }, h('h3', {}, label), h('div', { class: 'v' }, value, h('span', {}, unit)), line, note);
    panel.append(tile);
    return ({ value: n, note: words, as_of: asOf, bound }, points) => {
      set(tile, { class: asOf == null ? 'kpi' : 'kpi old' });
      put(value, n == null ? '–' : `${bound ? '≥ ' : ''}${number(n, digits)}`);
      set(value.nextElementSibling, { class: n == null ? 'none' : '' });
      const said = asOf == null ? words : `as of ⟦${asOf}⟧`;
      if (note.said !== said) {
        note.said = said;
        note.replaceChildren(...sentence(said));
        note.title = note.textContent;
      }
      line.update(points);
    };
  });
  const names = Object.keys(NUMBERS);
  return ({ numbers, lines = {} }) => {
    if (numbers) names.forEach((name, at) => tiles[at](numbers[name], lines[name]));
  };
}

export function overview(root, now) {
  const parts = [verdict, firstSteps, headline, partitions, workers, symbols].map((part) => part(root, now));
  const notes = feed(root);
  const tick = () => parts.forEach((part) => part.tick?.());
  return {
    url: '/api/overview',
    show(state, fresh, whole) {
      for (const part of parts) part(state);
      notes(fresh, whole);
      const title = state.verdict ? `${state.verdict.title} · tickwatch` : 'tickwatch';
      if (document.title !== title) document.title = title;
    },
    tick,
  };
}
