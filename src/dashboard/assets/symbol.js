// One symbol: candles, rules, notifications, and the same in words.

import { $, h, keyed, put, reshape, sayRoles, set } from './dom.js';
import { age, clock, dateTime, decimal, decimals, number, padded } from './format.js';
import { chart } from './chart.js';
import { feed } from './feed.js';
import { HOLDS } from './partitions.js';
import { ruleForm, withThreshold, write } from './rule-form.js';
import { rules } from './rules.js';

/** Rows of the tables; fewer beside the form on wide screens, as the styles say. */
const CANDLES = 12;
const RULES = 12;
/** Marks kept: notifications of this symbol. */
const MARKS = 300;
const HOUR = 3_600_000;

/** The view's candles, oldest first: numbers to draw, texts to write. */
function read(candles = {}) {
  return Object.entries(candles)
    .map(([start, [open, high, low, close, volume, count, status, revision]]) => ({
      start: Number(start),
      open: Number(open),
      high: Number(high),
      low: Number(low),
      close: Number(close),
      volume: Number(volume),
      texts: [open, high, low, close, volume],
      count,
      status,
      revision,
      key: `${close} ${count} ${status} ${revision} ${high} ${low}`,
    }))
    .sort((a, b) => a.start - b.start);
}

export function symbol(root, now, { symbol: name, reopen }) {
  put($('#sy', root), name);
  document.title = `${name} · tickwatch`;
  $('#chart', root).setAttribute('aria-label', `Candles of ${name} with rules and notifications; the same data is in the tables below`);
  const chosen = new URLSearchParams(location.search).get('interval');
  const view = { url: '', show, tick };
  const aim = (interval) => {
    view.url = `/api/symbol?symbol=${encodeURIComponent(name)}${interval ? `&interval=${encodeURIComponent(interval)}` : ''}`;
  };
  aim(chosen ?? localStorage.getItem('interval'));

  const form = ruleForm(root, name);
  const change = async (method, body) => {
    const { ok, text } = await write(method, body);
    form.say(text, ok);
  };
  const list = rules(root, {
    onChange: form.change,
    onRemove: (rule) => change('DELETE', { symbol: name, id: rule.id }),
  });
  const readout = hover(root);
  const drawn = chart(root, {
    onHover: (candle) => readout(candle, shown.interval),
    onMove: (rule, threshold) => change('POST', withThreshold(name, rule, threshold)),
  });
  const notes = feed(root, true);
  const table = candleTable(root);
  let marks = [];
  let shown = {};
  let candles = [];

  function show(state, fresh, whole) {
    shown = state;
    candles = read(state.candles);
    marks = (whole ? fresh : [...marks, ...fresh]).slice(-MARKS);
    head(state);
    intervals(state);
    list(state, RULES);
    table(candles, state.about.intervals[state.interval] < 1000);
    notes(fresh, whole);
    form.show(state.about.writes, state.price);
    set(root, { class: state.about.writes ? 'symbol rw' : 'symbol' });
    const interval = state.about.intervals[state.interval] ?? 60000;
    const wanted = Object.entries(state.rules ?? {}).sort(([, a], [, b]) => a.place - b.place);
    drawn.show({
      candles,
      interval,
      price: state.price,
      writes: state.about.writes,
      watermark: state.source?.watermark,
      rules: wanted.map(([key, rule]) => ({ ...rule, key, text: rule.threshold, threshold: Number(rule.threshold) })),
      marks: marks.map((note) => ({ ...note, time: startOf(note.at, interval), price: Number(note.threshold) })),
    });
    readout(candles.at(-1), state.interval);
    const none = $('#c-none', root);
    none.hidden = candles.length > 0;
    if (!candles.length) put(none, state.price == null ? 'No tick of this symbol yet. Its page fills by itself when one comes.' : 'No candles of this interval are kept.');
  }

  /** Start of the shown candle that holds an event time, in seconds. */
  const startOf = (at, interval) => (candles.findLast((candle) => candle.start <= at && at < candle.start + interval)?.start ?? NaN) / 1000;

  function head({ price, tps, source, partition, about, redis_as_of: asOf, interval }) {
    put($('#px', root), price == null ? '–' : decimal(price));
    set($('#px', root), { class: asOf ? 'price old' : 'price' });
    const last = candles.at(-1);
    const from = last && candles.find((candle) => candle.start >= last.start - HOUR);
    const span = from && last.start + about.intervals[interval] - from.start;
    const change = from && from.open ? (Number(price) / from.open - 1) * 100 : null;
    const element = $('#chg', root);
    if (change == null || span < 1000) put(element, '');
    else {
      const way = change > 0 ? ['▲', 'up'] : change < 0 ? ['▼', 'down'] : ['', 'mid'];
      put(element, `${way[0]} ${number(Math.abs(change), 2)} % in ${span >= HOUR * 0.95 ? '1 h' : age(span).replace(/\.\d/, '')}`);
      set(element, { class: `nw ${way[1]}`, title: `since ${clock(from.start)} UTC` });
    }
    put($('#tps', root), tps == null ? '' : `${number(tps, tps < 10 ? 1 : 0)} ticks/s`);
    const link = $('#src', root);
    if (source) {
      const [word, shape, colour] = HOLDS[source.hold];
      put($('span', link), `${about.topic}/${partition} ${word.toLowerCase()}`);
      reshape($('svg', link), `#g-${shape}`, `g ${colour}`);
      set(link, { href: `/#p${partition}`, title: source.reason || null });
    } else put($('span', link), 'no partition yet');
    put($('#own', root), source?.owner ?? '');
    const away = $('#s-away', root);
    away.hidden = !asOf;
    if (asOf) put($('span', away), `Redis does not answer: values are as of ${dateTime(asOf)} UTC.`);
    tick();
  }

  function intervals({ about, interval }) {
    const box = $('#iv', root);
    const byLength = Object.entries(about.intervals).sort(([, a], [, b]) => a - b);
    keyed(box, byLength.map(([key]) => [key, key === interval]), (key) => {
      const input = h('input', { type: 'radio', name: 'iv', value: key });
      const label = h('label', {}, input, key);
      input.addEventListener('change', () => {
        localStorage.setItem('interval', key);
        aim(key);
        reopen();
      });
      label.update = (is) => (input.checked = is);
      return label;
    });
  }

  function tick() {
    put($('#lt', root), shown.ts == null ? '–' : `${age(now() - shown.ts)} ago`);
    set($('#lt', root), { 'data-ms': shown.ts == null ? null : String(shown.ts) });
  }
  return view;
}

/** The candle under the pointer, or the newest. */
function hover(root) {
  const fields = ['', 'O', 'H', 'L', 'C', 'V', 'Ticks', ''].map((label) => {
    const value = h('b');
    $('#read', root).append(h('div', {}, label ? h('span', {}, label) : null, value));
    return value;
  });
  return (candle, interval) => {
    if (!candle) return;
    const state = `${candle.status}${candle.revision > 0 ? `, revision ${candle.revision}` : ''}`;
    const values = [`${clock(candle.start, interval?.endsWith('ms'))} · ${interval}`, ...candle.texts.map(decimal), number(candle.count), state];
    values.forEach((value, at) => put(fields[at], value));
  };
}

function candleTable(root) {
  const table = $('#ct', root);
  const body = $('tbody', table);
  sayRoles(table);
  return (candles, fine) => {
    const newest = candles.slice(-CANDLES).reverse();
    const digits = Math.max(0, ...newest.flatMap((candle) => candle.texts.slice(0, 4).map(decimals)));
    const volumes = Math.max(0, ...newest.map((candle) => decimals(candle.texts[4])));
    keyed(body, newest.map((candle) => [candle.start, { ...candle, digits, volumes, fine }]), row);
  };

  function row(start) {
    const cell = (key, right = true) => h('td', { class: `t-${key}${right ? ' r' : ''}`, role: 'cell' });
    const cells = [cell('o'), cell('o'), cell('o'), cell('c'), cell('v'), cell('n')];
    const [word, revision] = [h('span'), h('span', { class: 'dim' })];
    const status = h('td', { class: 't-w', role: 'cell' }, word, revision);
    const time = h('td', { class: 't-st', role: 'cell', 'data-ms': start });
    const element = h('tr', { role: 'row' }, time, ...cells, status);
    element.update = ({ texts, count, status: state, revision: number_, digits, volumes, fine }) => {
      put(time, clock(start, fine));
      texts.slice(0, 4).forEach((text, at) => put(cells[at], padded(text, digits)));
      put(cells[4], padded(texts[4], volumes));
      put(cells[5], number(count));
      put(word, state);
      set(word, { class: state === 'final' ? 'mid' : 'b' });
      put(revision, number_ > 0 ? ` r${number_}` : '');
    };
    return element;
  }
}
