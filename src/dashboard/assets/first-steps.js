// What stands in place of the evidence until the first tick: what to do next.

import { $, $$, command, put } from './dom.js';
import { number } from './format.js';

export function firstSteps(root) {
  for (const place of $$('[data-cmd]', root)) place.append(command(place.dataset.cmd));
  const [steps, numbers, evidence] = ['#first', '#kpis', '#evidence'].map((id) => $(id, root));
  let namespace = null;
  return ({ about, verdict, partitions = {} }) => {
    const waiting = verdict?.tone === 'wait';
    const unknown = verdict == null || (Object.keys(partitions).length === 0 && verdict.tone !== 'ok');
    steps.hidden = !waiting;
    numbers.hidden = evidence.hidden = waiting || unknown;
    if (about.namespace !== namespace) {
      namespace = about.namespace;
      $('#zadd', root).replaceChildren(command(`redis-cli ZADD ${namespace}rules:S00000:edge 100 ">= alice-1"`));
    }
    put($('#c-topic', root), about.topic);
    put($('#c-dlq', root), about.dead_letters);
    put($('#c-future', root), number(about.max_future / 1000));
  };
}
