// "Did we lose anything?": the loss ledger in words, and what a failover has put into quarantine.
import { Command, Fact, flowLink, Mark, Waiting, When } from "./parts.js";
import { html } from "./view.js";
import { count, counted } from "./words.js";

const MOST_ROWS = 200;
// The API names so many of a flow.
const MOST_ERRORS = 100;

// Kind of an event -> mark, what happened.
const KINDS = {
  retention: ["bad", "lost", (f) => `${f.source} deleted it before it was copied`],
  recreated: ["bad", "lost", (f) => `deleted and created again on ${f.source} before it was copied`],
  skipped: ["bad", "lost", () => "its position was set past it"],
  quarantined: ["bad", "lost", (f) => `left on ${f.source} by a failover, which kept its records in quarantine`],
  "target-lost": ["bad", "lost", (f) => `copied, then lost by ${f.target}`],
  truncation: ["warn", "overwritten", (f) => `copied, then ${f.source} lost it and wrote other records there`],
  poisoned: ["warn", "stopped", () => "cannot be read"],
  "too-large": ["warn", "stopped", (f) => `larger than ${f.target} accepts`],
  refused: ["warn", "stopped", () => "a cluster refuses it"],
  "may-be-doubled": ["note", "may be doubled", (f) => `sent again; the first attempt may be on ${f.target} too`],
};

function range(it) {
  if (it.first === null) return "not known";
  if (it.last === null) return `from ${count(it.first)}`;
  return it.first === it.last ? count(it.first) : `${count(it.first)} to ${count(it.last)}`;
}

/** The events at which a partition stopped and still stands. It went past all others: so it is cured of those where the flow copies it, tells all that is wrong, and names no cause for it. */
function standing(flow, events, copying) {
  const stuck = new Set(flow.errors.map((it) => it.where));
  const paused = new Set(flow.paused);
  const stops = events.filter((it) => KINDS[it.kind]?.[1] === "stopped");
  const newest = new Map([...stops].reverse().map((it) => [`${it.topic}-${it.partition}`, it]));
  const told = flow.incomplete.length === 0 && flow.errors.length < MOST_ERRORS && flow.failed_partitions + flow.held_partitions <= stuck.size;
  return new Set([...newest].filter(([where, it]) => !copying || !told || stuck.has(where) || paused.has(where) || paused.has(it.topic)).map(([, it]) => it));
}

const total = (topics, key) => topics.reduce((sum, it) => sum + it[key], 0);

function judged(ledger, open, copying) {
  const [lost, stopped, overwritten, doubled] = ["lost", "refused", "truncated", "may_be_doubled"].map((key) => total(ledger.topics, key));
  const said = [
    lost && `${counted(lost, "offset")} lost`,
    stopped && `stopped at ${counted(stopped, "record or batch", "records or batches")}${open === 0 ? ", cured" : open < stopped ? `, ${count(open)} not cured` : ""}`,
    overwritten && `${counted(overwritten, "offset")} overwritten on the source`,
    doubled && `${counted(doubled, "offset")} may be doubled`,
    ledger.unreadable && `${counted(ledger.unreadable, "entry", "entries")} of a newer version cannot be read`,
  ].filter(Boolean);
  if (said.length) return [lost ? "bad" : open || overwritten || ledger.unreadable ? "warn" : "note", `${said.join("; ")}.`];
  if (ledger.total) return ["note", `${counted(ledger.total, "entry", "entries")}, in which no offset is known to be lost.`];
  return [copying ? "good" : "plain", "Nothing was lost, stopped or doubled."];
}

export function Ledger({ flow, poll, failover, copying }) {
  const ledger = poll.data;
  if (!ledger) return html`<${Waiting} poll=${poll} what="ledger" />`;
  const missing = failover?.data?.failover?.missing ?? 0;
  const open = standing(flow, ledger.events, copying);
  const [kind, text] = judged(ledger, open.size, copying && missing <= 0);
  const kept = (failover?.data?.failover?.tail || []).filter((it) => it.end > it.start);
  return html`<h2>Did we lose anything?</h2>
    <p class="verdict" role="status"><${Mark} kind=${poll.stale ? "unknown" : kind} word=${poll.stale ? `Last known: ${text}` : text} />
      ${poll.at ? html`<span class="muted"> as of <${When} ms=${poll.at} /></span>` : null}</p>
    ${missing > 0 && !kept.length ? html`<div class="finding warn"><p>A failover left ${counted(missing, "offset")} of ${flow.source} behind, which are not in these numbers: <a href=${flowLink(flow.flow, "failover")}>Failover</a> has them.</p></div>` : null}
    ${ledger.topics.length ? html`<${Sums} topics=${ledger.topics} />` : html`<p class="muted">What cannot be copied is written here with its exact offsets before the flow goes past it.
      After a crash the last second may be on ${flow.target} twice where its log could not be read.</p>`}
    <${Quarantine} flow=${flow} rows=${kept} />
    ${ledger.events.length ? html`<${Events} flow=${flow} ledger=${ledger} open=${open} />` : null}`;
}

function Sums({ topics }) {
  return html`<dl class="facts">
    <${Fact} name="Lost" title="not on the target, and will not arrive there">${counted(total(topics, "lost"), "offset")}<//>
    <${Fact} name="Stopped" title="the partition waited before it, or waits now">${counted(total(topics, "refused"), "time")}<//>
    <${Fact} name="Overwritten">${counted(total(topics, "truncated"), "offset")}<//>
    <${Fact} name="May be doubled">${counted(total(topics, "may_be_doubled"), "offset")}<//>
    <${Fact} name="Topics">${count(topics.length)}<//>
  </dl>`;
}

function Events({ flow, ledger, open }) {
  const rows = ledger.events.slice(0, MOST_ROWS);
  return html`<h3>Each event, the newest first</h3><div class="scroll" tabindex="0"><table class="ledger">
    <thead><tr><th scope="col">Where</th><th scope="col">What</th><th scope="col" class="number">Offsets on ${flow.source}</th>
      <th scope="col" class="number wide">How many</th><th scope="col" class="wide">Noticed</th></tr></thead>
    ${rows.map((it) => {
      const [worst, what, how] = KINDS[it.kind] || ["unknown", it.kind, () => "this page does not know it"];
      const [kind, word] = what === "stopped" && !open.has(it) ? ["done", "stopped, cured"] : [worst, what];
      return html`<tbody><tr><th scope="row">${it.topic}-${it.partition}</th><td><${Mark} kind=${kind} word=${word} /></td><td class="number">${range(it)}</td>
          <td class="number wide">${count(it.offsets)}</td><td class="wide"><${When} ms=${it.at_ms} /></td></tr>
        <tr><td class="cause" colspan="5">${how(flow)}: ${it.cause}${it.policy ? html` <span class="muted">(by ${it.policy})</span>` : ""}</td></tr></tbody>`;
    })}</table></div>
    ${ledger.total > rows.length ? html`<p class="muted">and ${count(ledger.total - rows.length)} older: <${Command} text=${`mm2py ledger FILE ${flow.source}/${flow.target}`} /></p>` : null}`;
}

function Quarantine({ flow, rows }) {
  if (!rows.length) return null;
  return html`<h3>In quarantine since the last failover</h3>
    <p class="muted">Written on ${flow.source}, not copied when clients moved. The records that ${flow.source} still had are in topics of ${flow.target}.</p>
    <div class="scroll" tabindex="0"><table><thead><tr><th scope="col">Partition</th><th scope="col" class="number">Offsets on ${flow.source}</th>
      <th scope="col" class="number">Records kept</th><th scope="col" class="wide">Kept in</th></tr></thead>
    <tbody>${rows.slice(0, MOST_ROWS).map((it) => html`<tr><th scope="row">${it.topic}-${it.partition}</th><td class="number">${count(it.start)} to ${count(it.end - 1)}</td>
      <td class="number">${count(it.records)}${(it.gone || []).map(([from, to]) => html`<div class="muted">${count(from)} to ${count(to - 1)} were deleted on ${flow.source} before</div>`)}</td><td class="wide"><code>mm2py-quarantine.${flow.source}.${it.topic}.internal</code></td></tr>`)}</tbody></table></div>`;
}
