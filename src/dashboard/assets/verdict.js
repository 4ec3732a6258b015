// The first line: one sentence, then each cause with its consequence and its next step, or what happened.

import { $, command, glyph, h, keyed, put, reshape, set } from './dom.js';
import { plainSentence, sentence, timeElement } from './format.js';

const ICONS = { ok: ['i-check', 'i ok'], wait: ['i-wait', 'i move'], warn: ['i-part', 'i warn'], stop: ['i-off', 'i stop'] };
const COLOURS = { stop: 'stop', lag: 'warn', dead: 'stop', unk: 'mid', ask: 'mid', quiet: 'mid', ok: 'ok', move: 'move' };
const STORY = { dead: ['dead', 'stop'], dropped: ['quiet', 'mid'], moved: ['move', 'move'] };

/** What each setting of [recovery] can be, and what that means. */
const CHOICES = {
  on_gap: {
    stop: 'Wait. If the records can be brought back, nothing is lost.',
    continue: 'Go on at the start of the log. The records before it are never counted, and the candles they belong to stay incomplete.',
  },
  on_state_loss: {
    stop: 'Wait. If the data can be brought back, nothing is lost: restart the worker then.',
    rebuild: 'Read the retained log again, without sending anything twice. Rules have to be there first.',
    resume: 'Go on with empty state: open candles and last prices begin anew.',
  },
  on_offsets_lost: {
    stop: 'Wait, until the committed offsets are back.',
    resume: 'Go on from the state in Redis. The last outputs may be sent again, with the same ids.',
  },
  on_truncation: {
    stop: 'Wait. Look whether the topic was made again on purpose.',
    reset: "Start over at the log's start. What was pending is dropped; notification ids get a new generation.",
  },
  bad_records: {
    block: 'Wait at this record, until it is skipped or the setting is changed.',
    dead_letter: 'Send it to the dead-letter topic with its reason, and go on.',
  },
};

/** The sentence with its times, rewritten only if it changed. */
function say(element, text) {
  if (element.said === text) return;
  element.said = text;
  element.replaceChildren(...sentence(text));
}

export function verdict(root) {
  const [title, text, image] = ['#vh', '#v-text', '#v-icon'].map((id) => $(id, root));
  const [causes, story] = [$('#causes', root), $('#story', root)];
  return ({ verdict, story: lines, partitions }) => {
    if (!verdict) return;
    put(title, verdict.title);
    say(text, verdict.text);
    reshape(image, `#${ICONS[verdict.tone][0]}`, ICONS[verdict.tone][1]);
    const moving = / is gone; /.test(verdict.title);
    causes.hidden = verdict.causes.length === 0;
    story.hidden = !moving || !causes.hidden;
    keyed(causes, verdict.causes.map((cause) => [cause.what, { ...cause, partitions, tone: verdict.tone }]), cause);
    if (!story.hidden) {
      const waiting = Object.entries(partitions).filter(([, row]) => row.hold === 'moving');
      const told = lines.map((line) => [`${line.kind} ${line.who} ${line.at}`, line]);
      const now = waiting.map(([number, row]) => [`now ${number}`, { number, text: row.reason }]);
      keyed(story, [...told, ...now], storyLine);
    }
  };
}

function cause() {
  const shape = glyph('stop');
  const what = h('span', { class: 'b el' });
  const word = h('b');
  const why = h('span');
  const detail = h('p');
  const item = h('li', { class: 'issue' }, shape, what, h('span', { class: 'why' }, word, why), detail);
  let button = null;
  item.update = (cause) => {
    const loud = cause.tone === 'stop' && cause.glyph === 'stop';
    set(item, { class: `issue ${loud ? 's' : ''}` });
    reshape(shape, `#g-${cause.glyph}`, `g ${COLOURS[cause.glyph]}`);
    put(what, cause.what);
    put(word, cause.word);
    say(why, cause.why);
    const detailKey = `${cause.detail}${cause.command ?? ''}`;
    if (detail.key !== detailKey) {
      detail.key = detailKey;
      detail.replaceChildren(...sentence(cause.detail), ...(cause.command ? [' ', h('code', {}, cause.command)] : []));
    }
    const wanted = buttonOf(cause);
    if (button?.dataset.for !== wanted?.dataset.for) {
      button?.remove();
      button = wanted;
      if (button) item.append(button);
    }
  };
  return item;
}

/** A stopped partition has a choice to make; any other partition can be shown. */
function buttonOf(cause) {
  if (cause.partition == null) return null;
  const setting = Object.keys(CHOICES).find((name) => cause.why.includes(name));
  if (setting && cause.glyph === 'stop') {
    const button = h('button', { class: 'btn sm', 'aria-haspopup': 'dialog', 'data-for': `choose ${setting}` }, 'Choose…');
    button.addEventListener('click', () => choose(cause, setting));
    return button;
  }
  return h('a', { class: 'btn sm', href: `#p${cause.partition}`, 'data-for': 'show' }, 'Show');
}

function choose(cause, setting) {
  const dialog = $('#choose');
  const choices = Object.entries(CHOICES[setting]);
  $('#gh').textContent = `${cause.what}: ${setting}`;
  $('#g-why').textContent = plainSentence(cause.why.replace(/^: /, ''));
  const current = choices[0][0];
  $('#g-choices').replaceChildren(
    ...choices.flatMap(([value, meaning]) => [
      h('dt', {}, `${setting} = "${value}"`, value === current ? h('span', { class: 'chip' }, 'now') : null),
      h('dd', {}, meaning),
    ]),
  );
  $('#g-owner').textContent = cause.partitions[cause.partition]?.owner ?? 'the workers';
  $('#g-line').replaceChildren(...choices.slice(1).map(([value]) => command(`${setting} = "${value}"`, 'cmd conf')));
  dialog.showModal();
}

function storyLine() {
  const shape = glyph('ask', 'mid');
  const time = h('span');
  const who = h('b');
  const text = h('span');
  const item = h('li', { class: 'issue' }, shape, time, h('span', { class: 'why' }, who, text));
  item.update = (line) => {
    if (line.number != null) {
      put(time, 'now');
      put(who, `${line.number}`);
      put(text, ` ${line.text}`);
      return;
    }
    const [name, colour] = STORY[line.kind];
    reshape(shape, `#g-${name}`, `g ${colour}`);
    if (!time.firstElementChild) time.replaceChildren(timeElement(line.at, true));
    put(who, line.who);
    put(text, ` ${line.text}`);
  };
  return item;
}
