// Small parts that all views share: marks, facts, links, commands, empty states.
import { judgeState, MARKS } from "./judgement.js";
import { pathOf } from "./polling.js";
import { html } from "./view.js";
import { time, UNKNOWN } from "./words.js";

/** A state: sign and word; colour only repeats them. */
export function Mark({ kind, word }) {
  const mark = MARKS[kind];
  return html`<span class=${`mark ${kind}`}><span class="sign" aria-hidden="true">${mark.sign}</span> ${word || mark.word}</span>`;
}

export const StateMark = ({ of, copying = false }) => html`<${Mark} kind=${judgeState(of, copying)} word=${of.state || "not known"} />`;

export const Fact = ({ name, children, title }) =>
  html`<div class="fact" title=${title}><dt>${name}</dt><dd>${children}</dd></div>`;

export const Command = ({ text }) => text && html`<code class="command">${text}</code>`;

/** A value of a property, or that there is none. */
export const valueText = (value) => (value === null ? html`<span class="muted">none</span>` : html`<code>${value}</code>`);

export const Empty = ({ children }) => html`<p class="empty">${children}</p>`;

/** Since when: with the zone's offset, for machines too. */
export const When = ({ ms }) => (ms ? html`<time datetime=${new Date(ms).toISOString()}>${time(ms)}</time>` : UNKNOWN);

export const flowLink = (flow, ...more) => `#/${pathOf("flows", flow, ...more)}`;

/** What a part of the page shows before its first answer, or why there is none. */
export function Waiting({ poll, what }) {
  if (poll?.error) return html`<${Empty}>The ${what} cannot be read now: ${poll.error}.<//>`;
  return html`<${Empty}>Reading ${what} ...<//>`;
}
