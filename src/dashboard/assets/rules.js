// The rules of a symbol, nearest to the price first, with change and remove where writes are allowed.

import { $, h, icon, keyed, put, s, sayRoles, set } from './dom.js';
import { MINUS, OPERATORS, clock, decimal, duration, number } from './format.js';

/** How long a removal waits for its second press. */
const SURE = 4000;

const SHAPES = {
  edge: [['M0 7h14', 'faint'], ['M3 11.5 10 2M6 1.6h4.3v4.2', '']],
  level: [['M0 10h14', 'faint'], ['M2 5h.1M7 5h.1M12 5h.1', 'dots']],
};

const kind = (trigger) =>
  h('span', { class: 'kd' },
    s('svg', { viewBox: '0 0 14 12', 'aria-hidden': 'true' }, ...SHAPES[trigger].map(([d, name]) => s('path', { d, class: name }))),
    trigger);

export function rules(root, { onChange, onRemove }) {
  const table = $('#rules', root);
  const body = $('tbody', table);
  sayRoles(table);
  return ({ rules: all = {}, rules_total: total, price }, shown) => {
    const entries = Object.entries(all).sort(([, a], [, b]) => a.place - b.place).slice(0, shown);
    keyed(body, entries.map(([key, rule]) => [key, { ...rule, price: Number(price) }]), () => row(onChange, onRemove));
    const nearest = total > entries.length ? `${entries.length} nearest of ${number(total)}` : `${number(total ?? 0)}`;
    put($('#r-note', root), total ? nearest : '');
    $('#r-none', root).hidden = entries.length > 0;
    table.hidden = entries.length === 0;
  };
}

function row(onChange, onRemove) {
  const cell = (key, right, ...children) => h('td', { class: `q-${key}${right ? ' r' : ''}`, role: 'cell' }, ...children);
  const [name, once, apart] = [h('b'), h('small', { class: 'xo dim' }), h('small', { class: 'xc dim' })];
  const cells = { op: cell('op'), th: cell('th', true), di: cell('di', true), ki: cell('ki'), on: cell('on'), co: cell('co', true), la: cell('la', true) };
  const change = h('button', { class: 'btn sm sq', type: 'button' }, icon('edit'));
  const remove = h('button', { class: 'btn sm sq', type: 'button' }, icon('bin'));
  const element = h('tr', { role: 'row' }, cell('id', false, name, once, apart), ...Object.values(cells), cell('ac', true, h('span', { class: 'ac' }, change, remove)));
  let rule = null;
  let sure = null;
  change.addEventListener('click', () => onChange(rule));
  remove.addEventListener('click', () => {
    if (sure) return onRemove(rule);
    remove.replaceChildren('Sure?');
    remove.classList.remove('sq');
    sure = setTimeout(() => {
      sure = null;
      remove.classList.add('sq');
      remove.replaceChildren(icon('bin'));
    }, SURE);
  });
  element.update = (next) => {
    const same = rule && rule.trigger === next.trigger;
    rule = next;
    put(name, rule.id);
    set(name, { title: rule.note ? `${rule.id}: ${rule.note}` : rule.id });
    put(once, rule.once ? 'once' : '');
    put(apart, rule.cooldown ? `${duration(rule.cooldown)} apart` : rule.once ? 'once' : '');
    put(cells.op, OPERATORS[rule.op]);
    put(cells.th, decimal(rule.threshold));
    const away = rule.price ? ((Number(rule.threshold) - rule.price) / Math.abs(rule.price)) * 100 : NaN;
    const sign = away > 0 ? '+' : away < 0 ? MINUS : '';
    put(cells.di, Number.isFinite(away) ? `${sign}${number(Math.abs(away), 2)} %` : '–');
    if (!same) cells.ki.replaceChildren(kind(rule.trigger));
    put(cells.on, rule.once ? 'once' : 'no');
    put(cells.co, rule.cooldown ? duration(rule.cooldown) : 'none');
    put(cells.la, rule.fired == null ? 'not seen' : clock(rule.fired));
    set(cells.la, {
      class: `q-la r${rule.fired == null ? ' dim' : ''}`,
      'data-ms': rule.fired == null ? null : String(rule.fired),
      title: rule.fired == null ? 'Not among the notifications seen since this page watches' : null,
    });
    set(change, { 'aria-label': `Change ${rule.id}` });
    set(remove, { 'aria-label': `Remove ${rule.id}` });
  };
  return element;
}
