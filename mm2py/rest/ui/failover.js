// "Can we fail over now, and what would we lose?": the plan of a failover, its rehearsal, and one that is under way step by step.
import { Action } from "./changing.js";
import { acceptLoss, cancelFailover, continueFailover, startFailover } from "./orders.js";
import { underWay } from "./pace.js";
import { Command, Fact, Mark, Waiting, When } from "./parts.js";
import { ask, pathOf } from "./polling.js";
import { Component, html } from "./view.js";
import { count, counted, duration, UNKNOWN } from "./words.js";

const MOST_ROWS = 50;

/** The steps of a failover in their order, with what each does. */
export const STEPS = {
  FENCE: (f) => `writers are kept from ${f.source}, where ACLs allow`,
  DRAIN: (f) => `what is on ${f.source} is copied`,
  GROUPS: (f) => `groups get their exact offsets on ${f.target}`,
  VERIFY: (f) => `the ends of the logs of ${f.source} stand still`,
  SWITCH: (f) => `clients may write to ${f.target}; the flow stops`,
  TAIL: () => "what was not copied is listed and kept",
  REVERSE: (f) => `the flow ${f.target}->${f.source} begins where both part`,
};

/** What stays behind, and what is only on its way: two numbers that are never one. */
function loss({ source, target }, plan) {
  const lost = counted(plan.would_lose, "offset");
  if (!plan.source_reachable) return `Without ${source}, everything is lost that was not copied when it stopped to answer: ${plan.would_lose > 0 ? `at least ${lost}, as far as it was seen` : UNKNOWN}. What ${source} still has when it answers again is kept in quarantine.`;
  const [waits, first] = [plan.awaited, plan.copied_first];
  return `${plan.would_lose > waits ? `${counted(plan.would_lose - waits, "offset")} would stay behind, in a partition or flow that failed, is held, paused or stopped: nothing copies ${plan.would_lose - waits === 1 ? "it" : "them"}.` : plan.topics.some((it) => it.gaps.length) ? "Nothing would stay behind but what is missing on the target already: see below." : "Nothing would stay behind."}${
    waits > 0 ? ` ${counted(waits, "offset")} wait for open transactions to end.` : ""}${
    first > 0 ? ` ${counted(first, "more offset")} ${first === 1 ? "is" : "are"} on the way (ordinary lag): a failover copies ${first === 1 ? "it" : "them"} to ${target} before clients move. Only if ${source} were gone this moment, ${first === 1 ? "it" : "they"} would be lost, too.` : ""}`;
}

/** Whether a failover would be accepted and lose nothing: kind of a mark, a sentence, and each reason against it. */
export function readiness(view, copying, drill = null) {
  const { plan, reasons } = view;
  const skipping = plan.groups.filter((it) => it.skips > 0);
  if (plan.standing) return { kind: "off", text: "Nothing to fail over", reasons };
  if (reasons.length) return { kind: "bad", text: `Not ready: ${counted(reasons.length, "reason")}`, reasons };
  if (skipping.length) return { kind: "warn", text: `Would be accepted; ${counted(skipping.length, "group")} would skip records`, reasons };
  if (plan.would_lose > 0) return { kind: "warn", text: `Would be accepted, and waits for open transactions with ${counted(plan.would_lose, "offset")}`, reasons };
  // The rehearsal asks more than the plan.
  if (drill && !drill.ready) return { kind: "warn", text: `The plan is ready, the rehearsal was not: ${counted(drill.reasons.length, "reason")} below`, reasons };
  return { kind: copying ? "good" : "plain", text: "Ready: a failover now would lose nothing", reasons };
}

export function Failover({ flow, polls, copying }) {
  const { plan, failover, failback } = polls;
  const records = [failover, failback].map((it, index) => it?.data?.failover?.kind === ["failover", "failback"][index] && { ...it.data.failover, drivenHere: it.data.driven_here }).filter(Boolean);
  const running = records.filter(underWay);
  if (running.length) return running.map((it) => html`<${Progress} flow=${flow} failover=${it} plan=${plan?.data?.plan} />`);
  // A plan of before the last step says nothing of now.
  const isOld = records.some((it) => it.at_ms > (plan?.data?.plan.at_ms ?? 0));
  return html`<${Rehearsed} key=${flow.flow} flow=${flow} polls=${polls} copying=${copying && !plan?.stale} isOld=${isOld} />
    ${records.map((it) => html`<${Progress} flow=${flow} failover=${it} />`)}`;
}

/** How far behind the flow was when its source last answered, where it does not now. */
function LastSeen({ samples }) {
  const last = (samples?.data || []).findLast((it) => it.lag_records !== null);
  return last ? html`<${Fact} name="Behind when last seen">${counted(last.lag_records, "record")}, <${When} ms=${last.at_ms} /><//>` : null;
}

function Plan({ flow, poll, copying, drill, samples }) {
  const { plan } = poll.data;
  const { kind, text, reasons } = readiness(poll.data, copying, drill);
  const ages = plan.topics.map((it) => it.lag_ms);
  // What only the source knows; what is wrong with the flow itself is above, once for each cause.
  const asked = (value) => (plan.source_reachable ? value : null);
  const oldest = ages.includes(null) ? null : Math.max(0, ...ages);
  return html`<section aria-labelledby="ready"><h2 id="ready">Can we fail over to ${flow.target} now?</h2>
    <p class="verdict" role="status"><${Mark} kind=${poll.stale ? "unknown" : kind} word=${poll.stale ? `Last known: ${text}` : text} />
      <span class="muted"> as of <${When} ms=${plan.at_ms} /></span></p>
    ${plan.standing ? null : html`<p>${loss(flow, plan)}</p>`}
    ${plan.standing ? null : html`<p class="buttons">${poll.data.refused.length ? null : html`<${Action} order=${startFailover(flow)} />`}
      ${plan.would_lose > 0 || !plan.source_reachable ? html`<${Action} order=${acceptLoss(flow, plan)} />` : null}</p>`}
    <ul class="findings">
      ${reasons.map((it) => html`<li class="finding bad"><p>${it}</p></li>`)}
      ${plan.problems.filter((it) => !it.startsWith(`flow ${flow.flow}: `)).map((it) => html`<li class="finding warn"><p>${it}</p></li>`)}
    </ul>
    <dl class="facts">
      <${Fact} name="Would lose" title="offsets that nothing copies: their partition or the flow failed, is held, paused or stopped">${plan.source_reachable ? counted(plan.would_lose, "offset") : plan.would_lose > 0 ? `at least ${counted(plan.would_lose, "offset")}` : UNKNOWN}<//>
      ${plan.source_reachable ? null : html`<${LastSeen} samples=${samples} />`}
      <${Fact} name="Copied first" title="ordinary lag: a failover copies it before clients move; it is lost only with ${flow.source} itself">${counted(asked(plan.copied_first), "offset")}<//>
      <${Fact} name="Behind (time)">${duration(oldest)}<//>
      <${Fact} name="Groups that read again">${counted(asked(plan.groups.filter((it) => it.reads_again > 0).length), "group")}<//>
      <${Fact} name="Groups that skip">${counted(asked(plan.groups.filter((it) => it.skips > 0).length), "group")}<//>
      <${Fact} name="Open transactions">${count(asked(plan.transactions.length))}<//>
      <${Fact} name="Writers now" title="producers with an id that wrote in the last 10 minutes">${count(plan.writers && asked(plan.writers.length))}<//>
      <${Fact} name="Fence" title=${plan.fence_note}>${plan.fence_rules ? counted(plan.fence_rules, "ACL") : "none"}<//>
      <${Fact} name="Source">${plan.source_reachable ? "answers" : "no answer"}<//>
      <${Fact} name="Flow back">${plan.reverse_state || "is created"}<//>
    </dl>
    ${plan.fence_note ? html`<p class="muted">Not fenced: ${plan.fence_note}</p>` : null}
    <${Transactions} rows=${plan.transactions} />
    <${Losses} rows=${plan.topics.filter((it) => it.would_lose || it.problems.length)} known=${plan.source_reachable} />
    ${plan.source_reachable ? null : html`<p>Groups of ${flow.source} are not known while it does not answer: they would get the offsets of their checkpoints.</p>`}
    <${Moves} rows=${plan.groups.filter((it) => it.reads_again || it.skips || it.not_synced || it.skips === null)} all=${plan.groups.length} known=${plan.source_reachable} target=${flow.target} />
    <p class="muted">The same on the command line, and the failover itself: <${Command} text=${`mm2py failover FILE --flow '${flow.flow}' --plan`} /></p></section>`;
}

const more = (rows) => rows.length > MOST_ROWS && html`<p class="muted">and ${count(rows.length - MOST_ROWS)} more: the command below has all with -o json</p>`;

function Transactions({ rows }) {
  if (!rows.length) return null;
  return html`<h3>Open transactions</h3><div class="scroll" tabindex="0"><table><thead><tr><th scope="col">Partition</th><th scope="col">Transactional id</th>
      <th scope="col" class="number">From offset</th><th scope="col" class="wide">Open since</th></tr></thead>
    <tbody>${rows.slice(0, MOST_ROWS).map((it) => html`<tr><th scope="row">${it.topic}-${it.partition}</th><td>${it.transactional_id || "not disclosed"}</td>
      <td class="number">${count(it.offset)}</td><td class="wide">${it.since_ms < 0 ? UNKNOWN : html`<${When} ms=${it.since_ms} />`}</td></tr>`)}</tbody></table></div>${more(rows)}`;
}

function Losses({ rows, known }) {
  if (!rows.length) return known ? html`<p>No topic would lose anything.</p>` : html`<p>What was written last and would be lost is not known.</p>`;
  return html`<h3>Topics with something in the way</h3><div class="scroll" tabindex="0"><table class="ledger"><thead><tr><th scope="col">Topic</th><th scope="col" class="number">Would lose (offsets)</th>
      <th scope="col" class="number">Copied first</th><th scope="col" class="number">Behind (time)</th></tr></thead>
    ${rows.slice(0, MOST_ROWS).map((it) => html`<tbody><tr><th scope="row">${it.topic}</th><td class="number">${count(it.would_lose)}</td><td class="number">${known && it.lag_records !== null ? count(it.lag_records - it.would_lose) : UNKNOWN}</td><td class="number">${duration(it.lag_ms)}</td></tr>
      <tr><td class="cause" colspan="4">${it.problems.join("; ") || "not copied"}</td></tr></tbody>`)}</table></div>${more(rows)}`;
}

function Moves({ rows, all, known, target }) {
  if (!all && !known) return null;
  if (!all) return html`<p>No group would be moved: none has committed an offset of a copied topic, or none is chosen.</p>`;
  if (!rows.length) return html`<p>${counted(all, "group")} would continue exactly where ${all === 1 ? "it is" : "they are"}.</p>`;
  return html`<h3>Groups that would not continue exactly</h3><p class="muted">${count(rows.length)} of ${counted(all, "group")}; a failover writes exact offsets to ${target} first.</p>
    <div class="scroll" tabindex="0"><table class="ledger"><thead><tr><th scope="col">Group</th><th scope="col" class="number">Reads again</th><th scope="col" class="number">Skips</th></tr></thead>
    ${rows.slice(0, MOST_ROWS).map((it) => html`<tbody><tr><th scope="row">${it.group}</th><td class="number">${count(it.reads_again)}</td><td class="number">${count(it.skips)}</td></tr>
      <tr><td class="cause" colspan="3">${it.not_synced ? `not synced: ${it.not_synced}` : "synced"}</td></tr></tbody>`)}</table></div>${more(rows)}`;
}

/** One failover or failback: which step it is at, what is behind it, why it stopped. */
function Progress({ flow, failover, plan }) {
  const names = Object.keys(STEPS);
  const at = failover.step === "DONE" ? names.length : names.indexOf(failover.step);
  const back = failover.kind === "failback";
  const ends = back ? { source: flow.target, target: flow.source } : flow;
  const waits = failover.cause && underWay(failover);
  const left = plan?.kind === failover.kind ? plan : { kind: failover.kind, would_lose: Math.max(0, failover.missing), source_reachable: true };
  const kind = { DONE: failover.missing > 0 ? "warn" : "done", CANCELLED: "off" }[failover.step] || (waits ? "bad" : "warn");
  const times = new Map((failover.steps || []).map((it) => [it.step, it]));
  const mark = (index) => (at < 0 ? ["next", "not done"] : index < at ? (failover.unplanned && !times.has(names[index]) ? ["off", "left out"] : ["done", "done"]) : index === at ? [waits ? "bad" : "warn", waits ? "stopped here" : "now"] : ["next", "to come"]);
  return html`<section class="detail" aria-label=${failover.kind}><h3>${back ? "Failback" : "Failover"} ${failover.id}</h3>
    <p class="verdict"><${Mark} kind=${kind} word=${failover.step} /> <span class="muted">begun <${When} ms=${failover.started_ms} />, last step <${When} ms=${failover.at_ms} /></span></p>
    ${failover.cause ? html`<p class="cause">Its last driver ended: ${failover.cause}. It is continued below, or by <${Command} text=${`mm2py ${failover.kind} FILE --flow '${flow.flow}' --execute`} /></p>` : null}
    <ol class="steps">${names.map((name, index) => html`<li><${Mark} kind=${mark(index)[0]} word=${mark(index)[1]} /> <strong>${name}</strong> ${STEPS[name](ends)} <${Took} time=${times.get(name)} /></li>`)}</ol>
    <p class="buttons">${underWay(failover) && !failover.switched_ms ? html`<${Action} order=${cancelFailover(flow, failover.kind)} />` : null}
      ${underWay(failover) && !failover.drivenHere ? html`<span class="muted">This worker does not drive it${failover.cause ? "" : "; a command or another worker may: this one would take its place"}.</span> <${Action} order=${continueFailover(flow, failover)}>Continue it<//>` : null}
      ${waits && !failover.switched_ms ? html`<${Action} order=${acceptLoss(flow, left)} />` : null}
      ${failover.kind === "failover" && failover.step === "DONE" ? html`<${Action} order=${startFailover(flow, "failback")} />` : null}</p>
    <p>Not copied: ${failover.missing < 0 ? UNKNOWN : counted(failover.missing, "offset")}. ${failover.fence_note ? `Not fenced: ${failover.fence_note}. ` : ""}
      ${failover.switched_ms ? html`Clients may write to ${ends.target} since <${When} ms=${failover.switched_ms} />.` : ""}</p>
    ${failover.groups.length ? html`<p>${counted(failover.groups.length, "group")} moved${failover.groups.some((it) => it.left.length) ? ", with remarks:" : "."}</p>
      <ul>${failover.groups.filter((it) => it.left.length).slice(0, MOST_ROWS).map((it) => html`<li>${it.group}: ${it.left.join("; ")}</li>`)}</ul>` : null}</section>`;
}

/** When a step began and how long it took; a record of an older build has no times. */
const Took = ({ time }) => (time ? html`<span class="muted">from <${When} ms=${time.began_ms} />${time.ended_ms ? `, ${duration(time.ended_ms - time.began_ms)}` : ""}</span>` : null);

/** The plan, and the rehearsal: it asks the questions of each step and shows how long they took; changes nothing. */
class Rehearsed extends Component {
  constructor(props) {
    super(props);
    this.state = { running: false, drill: null, error: "" };
    this.run = async () => {
      this.setState({ running: true, error: "" });
      try {
        this.setState({ running: false, drill: await ask(pathOf("jobs", "failover", this.props.flow.flow, "drill")) });
      } catch (error) {
        this.setState({ running: false, error: error.message });
      }
    };
  }

  render({ flow, polls: { plan, samples }, copying, isOld }, { running, drill, error }) {
    const known = plan?.data && !isOld;
    return html`${known ? html`<${Plan} flow=${flow} poll=${plan} copying=${copying} drill=${drill} samples=${samples} />` : html`<${Waiting} poll=${plan} what="plan" />`}
    <section aria-labelledby="drill"><h2 id="drill">Rehearsal</h2>
      <p>Each step's questions are asked and timed. Nothing is changed. <button type="button" class="action asks" disabled=${running} onClick=${this.run}>${running ? "Rehearsing ..." : "Rehearse now"}</button></p>
      <div role="status">${error ? html`<p class="cause">No rehearsal: ${error}</p>` : null}
      ${drill ? html`<p class="verdict"><${Mark} kind=${drill.ready ? "good" : "bad"} word=${drill.ready ? `Ready; clients would wait about ${duration(drill.gap_ms)}` : `Not ready: ${counted(drill.reasons.length, "reason")}`} />
          <span class="muted"> as of <${When} ms=${drill.at_ms} /></span></p>
        <ul class="findings">${drill.reasons.map((it) => html`<li class="finding bad"><p>${it}</p></li>`)}</ul>
        <div class="scroll" tabindex="0"><table><thead><tr><th scope="col">Step</th><th scope="col" class="number">Took</th><th scope="col">Found</th></tr></thead>
          <tbody>${drill.steps.map((it) => html`<tr><th scope="row">${it.step}</th><td class="number">${count(it.ms)} ms</td><td>${it.found}</td></tr>`)}</tbody></table></div>` : null}</div></section>`;
  }
}

