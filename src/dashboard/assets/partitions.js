// The table of source partitions. Rows keep their order; trouble is lifted into the first line instead.

import { $, glyph, h, keyed, put, reshape, sayRoles, set } from './dom.js';
import { age, clock, number, sentence } from './format.js';

/** State: its word, its shape, its colour, the mark of its row. */
export const HOLDS = {
  current: ['Current', 'ok', 'ok', 'calm'],
  quiet: ['Quiet', 'quiet', 'mid', 'calm'],
  lagging: ['Lagging', 'lag', 'warn', 'w'],
  asking: ['Asking the broker', 'ask', 'mid', ''],
  stopped: ['Stopped', 'stop', 'stop', 's'],
  silent: ['Silent', 'dead', 'stop', 's'],
  moved: ['Moved', 'move', 'move', 'm'],
  moving: ['Moving', 'ask', 'move', 'm'],
  unclaimed: ['Not claimed', 'quiet', 'mid', ''],
  unknown: ['Unknown', 'unk', 'mid', ''],
};

/** How far back on a bar from 0 to 10 minutes; the first seconds take most of it. */
const reach = (ms) => `${Math.min(100, (Math.log10(1 + Math.max(0, ms) / 1000) / Math.log10(600)) * 100).toFixed(0)}%`;

/** Names begin with their host: what tells them apart is at their end. */
const shortOwner = (name) => (name.length > 16 ? `…${name.slice(-14)}` : name);

export function partitions(root, now) {
  const table = $('#parts', root);
  const body = $('tbody', table);
  const more = $('#p-more', root);
  more.addEventListener('click', () => {
    table.classList.add('all');
    more.remove();
  });
  sayRoles(table);
  const rows = new Map();
  const show = ({ partitions = {}, about, redis_as_of }) => {
    const entries = Object.entries(partitions).sort(([a], [b]) => a - b);
    keyed(body, entries, (key) => {
      const made = row(key, now);
      rows.set(key, made);
      return made;
    });
    const moving = entries.filter(([, row]) => row.hold === 'moving' || row.hold === 'moved').length;
    const what = moving ? `${moving} moving` : `${entries.length} partition${entries.length === 1 ? '' : 's'}`;
    put($('#p-note', root), redis_as_of ? `positions as of ${clock(redis_as_of)}` : `${about.topic}, ${what}`);
    const calm = entries.filter(([, row]) => HOLDS[row.hold][3] === 'calm').length;
    put(more, calm === entries.length ? `All ${calm} are current or quiet: show them` : `Show ${calm} that are current or quiet`);
    set(more, { class: calm ? 'more' : 'more none' });
  };
  /** Ages go on between two frames. */
  show.tick = () => {
    for (const row of rows.values()) row.tick();
  };
  return show;
}

function row(key, now) {
  const cell = (name, right, ...children) => h('td', { class: `c-${name}${right ? ' r' : ''}`, role: 'cell' }, ...children);
  const shape = glyph('ok');
  const word = h('span');
  const why = h('span', { class: 'mid' });
  const bar = h('i');
  const behind = h('span');
  const owner = cell('own');
  const cells = Object.fromEntries(['ep', 'pos', 'lag', 'wm', 'win'].map((name) => [name, cell(name, true)]));
  const state = h('span', { class: 'st' }, shape, h('span', {}, word, why));
  const element = h(
    'tr', { id: `p${key}`, role: 'row' },
    cell('part', false, h('b', {}, key)), cell('st', false, state), owner, cells.ep, cells.pos, cells.lag, cells.wm,
    cell('age', true, h('span', { class: 'age' }, bar, behind)), cells.win,
  );
  let shown = {};
  element.tick = () => {
    if (shown.watermark == null) {
      bar.style.setProperty('--w', (bar.width = '0'));
      return put(behind, '–');
    }
    const ms = now() - shown.watermark;
    put(behind, age(ms));
    const width = reach(ms);
    if (bar.width !== width) bar.style.setProperty('--w', (bar.width = width));
  };
  element.update = (row) => {
    shown = row;
    const [name, figure, colour, mark] = HOLDS[row.hold];
    set(element, { class: mark });
    reshape(shape, `#g-${figure}`, `g ${colour}`);
    put(word, name);
    set(word, { class: mark === 'calm' && row.hold === 'current' ? 'mid' : 'b' });
    // What passes through in a moment is no reason.
    const reason = row.hold === 'current' ? '' : row.reason;
    if (why.said !== reason) {
      why.said = reason;
      const glue = ['lagging', 'moved', 'moving', 'asking'].includes(row.hold) ? ' ' : ' · ';
      why.replaceChildren(...(reason ? [glue, ...sentence(reason)] : []));
    }
    const known = (value) => (value == null ? '–' : number(value));
    put(owner, shortOwner(row.owner ?? 'none'));
    set(owner, { 'data-ep': known(row.epoch), 'data-pos': known(row.position), title: row.owner ?? null });
    put(cells.ep, known(row.epoch));
    put(cells.pos, known(row.position));
    put(cells.lag, row.lag == null ? '–' : `${row.bound ? '≥ ' : ''}${number(row.lag)}`);
    put(cells.wm, row.watermark == null ? '–' : clock(row.watermark));
    set(cells.wm, { 'data-ms': row.watermark == null ? null : String(row.watermark) });
    put(cells.win, known(row.windows));
    const old = row.as_of == null ? '' : ' old';
    for (const [name, cell] of Object.entries(cells)) set(cell, { class: `c-${name} r${name === 'lag' ? '' : old}` });
    element.tick();
  };
  return element;
}
