// The busiest symbols, and the filter over them.

import { $, h, keyed, put, sayRoles, set } from './dom.js';
import { symbolPath } from './bar.js';
import { age, clock, decimals, number, padded } from './format.js';
import { spark } from './spark.js';

/** Rows shown while nothing is filtered. */
const MOST = 9;

export function symbols(root, now) {
  const table = $('#syms', root);
  const body = $('tbody', table);
  const filter = $('#s-filter', root);
  let shown = {};
  const rows = new Set();
  sayRoles(table);

  const show = (state) => {
    shown = state;
    const { rows: all = {}, total } = state.symbols ?? {};
    const wanted = filter.value.trim().toLowerCase();
    const sorted = Object.entries(all).sort(([, a], [, b]) => a.place - b.place);
    const found = wanted ? sorted.filter(([name]) => name.toLowerCase().includes(wanted)) : sorted;
    const entries = found.slice(0, MOST).map(([name, row]) => [name, { ...row, partitions: state.partitions }]);
    keyed(body, entries, (name) => {
      const made = row(name, now);
      rows.add(made);
      return made;
    });
    const of = total == null ? '' : ` of ${number(total)}`;
    put($('#s-note', root), wanted ? `${found.length} match${found.length === 1 ? 'es' : ''}` : `${entries.length} busiest${of}`);
  };
  filter.addEventListener('input', () => show(shown));
  show.tick = () => {
    for (const made of rows) {
      if (!made.isConnected) rows.delete(made);
      else made.tick();
    }
  };
  return show;
}

function row(name, now) {
  const cell = (key, ...children) => h('td', { class: `s-${key} r`, role: 'cell' }, ...children);
  const price = h('span', { class: 'last' });
  const line = spark(220, 24, true);
  const cells = Object.fromEntries(['chg', 'tps', 'tick', 'rule', 'fire', 'part'].map((key) => [key, cell(key)]));
  const element = h(
    'tr', { role: 'row' },
    h('td', { class: 's-sym', role: 'cell' }, h('a', { href: symbolPath(name), title: name }, name)), cell('last', price), cells.chg,
    h('td', { class: 's-chart', role: 'cell' }, line), cells.tps, cells.tick, cells.rule, cells.fire, cells.part,
  );
  element.addEventListener('click', (event) => {
    if (!event.target.closest('a') && !getSelection().toString()) element.querySelector('a').click();
  });
  let shown = {};
  let digits = 0;
  element.tick = () => {
    if (shown.ts == null) return put(cells.tick, '–');
    const ms = now() - shown.ts;
    const slow = shown.hold === 'lagging' || shown.hold === 'stopped';
    put(cells.tick, `${slow ? '▲ ' : ''}${age(ms)}`);
    set(cells.tick, { class: `s-tick r ${slow ? 'warn' : 'mid'}`, title: slow ? `Its partition is ${shown.hold}` : null, 'data-ms': slow ? null : String(shown.ts) });
  };
  element.update = (row) => {
    const changed = shown.price !== undefined && shown.price !== row.price;
    shown = { ...row, hold: row.partitions?.[row.partition]?.hold };
    digits = Math.max(digits, decimals(row.price));
    put(price, padded(row.price, digits) || '–');
    if (changed) {
      price.classList.remove('hit');
      requestAnimationFrame(() => price.classList.add('hit'));
    }
    if (row.change == null) put(cells.chg, '–');
    else {
      const way = row.change > 0 ? ['▲', 'up'] : row.change < 0 ? ['▼', 'down'] : ['', 'mid'];
      put(cells.chg, `${way[0]} ${number(Math.abs(row.change), 2)} %`);
      set(cells.chg, { class: `s-chg r ${way[1]}`, title: `since ${clock(row.from)} UTC` });
    }
    line.update(row.line && [...row.line, Number(row.price)]);
    put(cells.tps, row.tps == null ? '–' : number(row.tps, row.tps < 10 ? 1 : 0));
    set(cells.tps, { 'data-r': row.rules == null ? '–' : number(row.rules) });
    put(cells.rule, row.rules == null ? '–' : number(row.rules));
    put(cells.fire, number(row.fired));
    put(cells.part, row.partition == null ? '–' : `/${row.partition}`);
    element.tick();
  };
  return element;
}
