// A lane for each worker: its signs of life, and tiles of what it owns. A takeover is seen as tiles that change lanes.

import { $, glyph, h, keyed, put, reshape, s, set } from './dom.js';
import { number, short } from './format.js';
import { HOLDS } from './partitions.js';

/** With more tiles than this, they shrink to their numbers. */
const WIDE = 24;
const BEATS = 30;

export function workers(root, now) {
  const lanes = $('#lanes', root);
  const note = $('#w-note', root);
  let at = 0;
  const made = new Set();
  const show = (state) => {
    at = now();
    const { workers = {}, partitions = {}, standing_by: spare = 0 } = state;
    const entries = Object.entries(workers);
    const many = Object.keys(partitions).length > WIDE;
    keyed(lanes, entries.map(([name, worker]) => [name, { worker, partitions, many }]), (name) => {
      const element = lane(name);
      made.add(element);
      return element;
    });
    const of = (life) => entries.filter(([, worker]) => worker.life === life).length;
    const parts = [`${of('up')} up`];
    if (of('silent')) parts.push(`${of('silent')} silent`);
    if (of('gone')) parts.push(`${of('gone')} gone`);
    if (spare) parts.push(`${spare} standing by`);
    put(note, entries.length ? parts.join(', ') : 'none has claimed a partition');
  };
  show.tick = () => {
    for (const element of made) {
      if (!element.isConnected) made.delete(element);
      else element.tick(now() - at);
    }
  };
  return show;
}

/** What is at the end of a long host name tells workers apart. */
export const shortName = (name) => name.split('-').at(-1);

function lane(name) {
  const cross = glyph('dead', 'stop none');
  const host = h('span', { class: 'dim el' });
  const rate = h('span');
  const unit = h('span', { class: 'dim' }, ' ticks/s');
  const beats = s('svg', { class: 'beat', 'aria-hidden': 'true' }, s('path', { d: 'M0 11.5H999' }));
  const marks = Array.from({ length: BEATS }, (_, at) => {
    const x = `${((at + 0.5) / BEATS) * 100}%`;
    const mark = s('line', { x1: x, x2: x, y1: 3, y2: 11, visibility: 'hidden' });
    beats.append(mark);
    return mark;
  });
  const before = h('span', {}, 'seen ');
  const seen = h('b', { class: 'b mid' });
  const tiles = h('div', { class: 'tiles' });
  const element = h(
    'div', { class: 'lane' },
    h('div', { class: 'top' }, cross, h('b', { class: 'nm el', title: name }, name), host, h('span', { class: 'push nw' }, rate, unit)),
    h('div', { class: 'hb' }, beats, h('span', {}, before, seen)),
    tiles,
  );
  let silent = 0;
  let life = 'up';
  element.tick = (since) => {
    const seconds = (silent + since) / 1000;
    put(seen, `${seconds < 100 ? seconds.toFixed(1) : Math.round(seconds)} s${life === 'gone' ? '' : ' ago'}`);
  };
  element.update = ({ worker, partitions, many }) => {
    ({ silent_for: silent, life } = worker);
    set(element, { class: `lane${life === 'gone' ? ' dead' : life === 'silent' ? ' hush' : ''}` });
    set(cross, { class: `g stop${life === 'up' ? ' none' : ''}` });
    put(before, life === 'gone' ? 'gone for ' : 'seen ');
    put(host, worker.host ?? '');
    put(rate, life === 'gone' ? '0' : worker.tps == null ? '–' : number(worker.tps));
    const padding = BEATS - worker.beats.length;
    marks.forEach((mark, at) => {
      const beat = worker.beats[at - padding];
      set(mark, { visibility: beat ? 'visible' : 'hidden', class: beat === '0' ? 'miss' : '', y1: beat === '0' ? '10' : '3' });
    });
    const owned = worker.partitions.map((number) => [`${number}`, ownTile(partitions[number], name)]);
    const lost = Object.entries(worker.lost ?? {}).map(([number, to]) => [`${number}`, lostTile(to)]);
    set(tiles, { class: `tiles${many ? ' many' : ''}` });
    keyed(tiles, [...owned, ...lost].sort(([a], [b]) => a - b), tile);
    element.tick(0);
  };
  return element;
}

function ownTile(row, owner) {
  if (!row) return { shape: 'unk', colour: 'mid', mark: '', words: '', hold: 'Unknown' };
  const [word, shape, colour, mark] = HOLDS[row.hold];
  const moved = row.hold === 'moved' && / from |^from /.test(row.reason) ? row.reason.match(/from (\S+),/)?.[1] : null;
  const words = {
    lagging: row.lag == null ? 'lags' : short(row.lag),
    stopped: 'stopped',
    quiet: 'quiet',
    asking: 'asking',
    silent: 'silent',
    moved: moved ? `← ${shortName(moved)}` : 'moved',
  };
  const class_ = { w: 'w', s: 's', m: 'new' }[mark] ?? '';
  return { shape, colour: colour === 'ok' ? 'ok' : '', mark: class_, words: words[row.hold] ?? '', hold: word, owner };
}

const lostTile = (to) => ({
  shape: to ? 'move' : 'ask',
  colour: '',
  mark: 'ghost',
  words: to ? `→ ${shortName(to)}` : '→ ?',
  hold: to ? `moved to ${to}` : 'not claimed yet',
});

function tile(key) {
  const shape = glyph('ok');
  const words = h('em');
  const element = h('a', { class: 'tile', href: `#p${key}` }, shape, h('b', {}, key), words);
  element.update = ({ shape: name, colour, mark, words: said, hold }) => {
    set(element, { class: `tile ${mark}`, 'aria-label': `Partition ${key}, ${hold}`, title: hold });
    reshape(shape, `#g-${name}`, `g ${colour}`);
    put(words, said);
  };
  return element;
}
