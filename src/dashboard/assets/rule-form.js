// The form says what a rule will do, in words and as a command, also where it may not write.

import { $, command, put } from './dom.js';
import { decimal, duration } from './format.js';

const IS = { '>=': 'at or above', '>': 'above', '=': 'exactly at', '<': 'below', '<=': 'at or below' };
const WAS = { '>=': 'below', '>': 'at or below', '=': 'elsewhere', '<': 'at or above', '<=': 'above' };

/** Words of a shell: quoted where they need it. */
const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) && !/^[=]/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

/** Sends a change; resolves to `{ok, text}`. */
export async function write(method, body) {
  const headers = { 'content-type': 'application/json', 'x-tickwatch': '1' };
  const answer = await fetch('/api/rules', { method, headers, body: JSON.stringify(body) }).catch(() => null);
  if (!answer) return { ok: false, text: 'The process that serves this page does not answer.' };
  if (!answer.ok) return { ok: false, text: (await answer.text()).trim() };
  const { done, replicated } = await answer.json();
  const doubt = replicated ? '' : ' No replica confirmed it within a second: a failover now could lose it.';
  return { ok: true, text: `${body.id}: ${done}.${doubt}` };
}

/** A rule as the API takes it, with another threshold. */
export const withThreshold = (symbol, rule, threshold) => ({
  symbol,
  id: rule.id,
  trigger: rule.trigger,
  op: rule.op,
  threshold,
  once: rule.once,
  cooldown: rule.cooldown ? duration(rule.cooldown) : null,
  expires: rule.expires ?? null,
  note: rule.note ?? null,
});

export function ruleForm(root, symbol) {
  const form = $('#form', root);
  const [add, said, title] = [$('#add', root), $('#said', root), $('#ah', root)];
  let writes = false;
  let changing = null;
  let touched = false;

  function words() {
    const data = new FormData(form);
    const [kind, op, threshold, id, apart] = ['kind', 'op', 'th', 'id', 'cd'].map((name) => (data.get(name) ?? '').trim());
    const once = data.get('once') != null;
    const price = /^-?\d+(\.\d+)?$/.test(threshold);
    const plain = !price
      ? 'Threshold: a plain decimal, such as 97600 or 0.1837.'
      : (kind === 'edge'
          ? `Fires when a tick is ${IS[op]} ${decimal(threshold)} and the one before was ${WAS[op]}.`
          : `Fires on every tick that is ${IS[op]} ${decimal(threshold)}.`) +
        (once ? ' One time, then the rule is gone.' : apart ? ` At most once in ${apart} of event time.` : '');
    put($('#plain', root), plain);
    const text = ['tickwatch rule put', quoted(symbol), kind, `'${op}'`, price ? threshold : 'PRICE', '--id', quoted(id || 'ID')]
      .concat(apart ? ['--cooldown', quoted(apart)] : [], once ? ['--once'] : [])
      .join(' ');
    const place = $('#cmd', root);
    if (place.said !== text) {
      place.said = text;
      place.replaceChildren(command(text));
    }
    add.disabled = !writes || !price || !id;
    put(add, changing ? 'Save change' : 'Add rule');
    put(title, changing ? `Change ${changing.id}` : 'Add a rule');
    const kept = { expires: changing?.expires ?? null, note: changing?.note ?? null };
    return { symbol, id, trigger: kind, op, threshold, once, cooldown: apart || null, ...kept };
  }

  form.addEventListener('input', () => {
    touched = true;
    put(said, '');
    words();
  });
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    const rule = words();
    if (add.disabled) return;
    add.disabled = true;
    const { ok, text } = await write('POST', rule);
    said.className = `f4 said ${ok ? 'ok' : 'stop'}`;
    put(said, text);
    if (ok) {
      changing = null;
      form.elements.id.value = '';
    }
    words();
  });

  return {
    /** What is known when the first view comes: whether writes are allowed, and a price to begin with. */
    show(allowed, price) {
      const changed = writes !== allowed;
      writes = allowed;
      if (!touched && price != null) {
        touched = true;
        form.elements.th.value = price;
        if (!form.elements.id.value) form.elements.id.value = 'alice-1';
        words();
      } else if (changed) words();
    },
    /** Fills it with a rule to change. */
    change(rule) {
      changing = rule;
      const { elements } = form;
      elements.kind.value = rule.trigger;
      elements.op.value = rule.op;
      elements.th.value = rule.threshold;
      elements.id.value = rule.id;
      elements.cd.value = rule.cooldown ? duration(rule.cooldown) : '';
      elements.once.checked = rule.once;
      touched = true;
      words();
      elements.th.focus();
      elements.th.select();
    },
    say(text, ok) {
      said.className = `f4 said ${ok ? 'ok' : 'stop'}`;
      put(said, text);
    },
  };
}
