// Jobs of a flow: how far, how fast, until when and how it ended; pause, resume, cancel of those that copy.
import { Action } from "./changing.js";
import { copyHistory } from "./orders.js";
import { Command, Empty, flowLink, Mark, Waiting, When } from "./parts.js";
import { html } from "./view.js";
import { bytes, bytesPerSecond, count, counted, duration, UNKNOWN } from "./words.js";

const STATES = { RUNNING: "plain", STARTING: "plain", PAUSED: "off", PLANNED: "off", DONE: "done", CANCELLED: "off", FAILED: "bad" };
const TITLES = { backfill: "Backfill", restore: "Restore", stream: "Stream", verify: "Verify", archive: "Archive", rerun: "Rerun" };
const RATE_OVER_MS = 60_000;

const seen = new Map();

/** What is known of a rate: per second over the last minute; of a job that tells seldom, since it began. */
export function rates({ id, state, bytes: size, done, started_ms: startedMs, at_ms: toldMs }, at) {
  const looks = seen.get(id) || [];
  if (looks.at(-1)?.at !== at) looks.push({ at, size, done });
  while (looks.length > 2 && at - looks[0].at > RATE_OVER_MS) looks.shift();
  seen.set(id, looks);
  const [first, last] = toldMs === null ? [looks[0], looks.at(-1)] : [{ at: startedMs, size: 0, done: 0 }, { at: toldMs, size, done }];
  const passedS = (last.at - first.at) / 1000;
  if (state !== "RUNNING" || passedS < 1) return { perS: null, bytesPerS: null };
  return { perS: (last.done - first.done) / passedS, bytesPerS: (last.size - first.size) / passedS };
}

/** Kind of a mark and its word: of a verify that has ended what it found. */
export function judgeJob(job) {
  if (job.equal) return ["done", "EQUAL"];
  if (job.equal === false) return job.differences > 0 ? ["bad", "NOT EQUAL"] : ["warn", "NOT ALL COMPARED"];
  return [STATES[job.state] || "unknown", job.state];
}

const direct = (job, action, button, text) => ({
  method: "POST", path: `jobs/backfill/${encodeURIComponent(job.id)}:${action}`, title: `${button} the copy of history of ${job.flow}`, button, text, direct: true,
});

function actions(job) {
  if (!["backfill", "restore"].includes(job.kind)) return [];
  const cancel = direct(job, "cancel", "Cancel", "What is copied stays, and the running flow continues every partition where it is.");
  if (job.state === "PLANNED" || job.state === "FAILED") return [direct(job, "start", "Start", "Partitions are copied from where they are, beside the running flow."), cancel];
  if (job.state === "PAUSED" || job.wanted === "PAUSE") return [direct(job, "resume", "Resume", "Lanes continue at the next record."), cancel];
  return job.state === "RUNNING" ? [direct(job, "pause", "Pause", "Lanes read nothing until it is resumed."), cancel] : [];
}

function Far({ job }) {
  if (job.kind === "stream") return html`<p>${counted(job.done, "offset")} copied since it began; ${job.lag === null ? `how far it is behind is ${UNKNOWN}` : `${counted(job.lag, "offset")} behind`}</p>`;
  if (job.total === null) return job.state === "RUNNING" ? html`<p>It is planned: what is to be read is not known yet.</p>` : null;
  const percent = job.total ? Math.floor((job.done / job.total) * 100) : 100;
  return html`<p><progress max="100" value=${percent} aria-label=${`part of the ${job.kind} that is done`}></progress> ${percent} %: ${count(job.done)} of ${counted(job.total, "offset")}</p>`;
}

function Job({ job, at }) {
  const { perS, bytesPerS } = rates(job, at);
  const [kind, word] = judgeJob(job);
  const end = perS > 0 ? `ends in ${duration(((job.total - job.done) / perS) * 1000)}` : `its end is ${UNKNOWN}`;
  const states = Object.entries(job.partitions_by_state).map(([state, number]) => `${count(number)} ${state.toLowerCase().replaceAll("_", " ")}`).join(", ");
  const rate = [perS !== null && (job.done > 0 || job.at_ms === null) && `${count(perS)} offsets/s`, bytesPerS > 0 && bytesPerSecond(bytesPerS)].filter(Boolean).join(", ") || `rate ${UNKNOWN}`;
  const copied = job.records > 0 && `${counted(job.records, "record")}${job.bytes > 0 ? ` in ${bytes(job.bytes)}` : ""}${job.result ? ` ${job.result}` : ""}`;
  const orders = actions(job);
  return html`<section class="detail" aria-label=${`${job.kind} ${job.id}`}>
    <div class="head"><h3>${TITLES[job.kind] || job.kind}</h3> <${Mark} kind=${kind} word=${word} />
      <span class="muted">${job.topics || "all topics"}${job.range ? `, ${job.range}` : ""}${job.by ? `, by ${job.by}` : ""} ${job.started_ms ? html`since <${When} ms=${job.started_ms} />` : null}</span></div>
    <${Far} job=${job} />
    ${job.equal === null ? null : html`<p>${counted(job.records, "record")} the same on both sides, ${counted(job.differences, "difference")}, ${counted(job.not_compared, "partition")} not compared</p>`}
    <p class="muted">${job.state === "RUNNING" ? `${rate}${job.total === null ? "" : `; ${end}`}. ` : ""}${job.equal === null && copied ? `${copied}. ` : ""}${states ? `Partitions: ${states}.` : ""}</p>
    ${job.cause ? html`<p class="cause">${job.cause}</p>` : null}
    ${orders.length ? html`<p class="buttons">${orders.map((order) => html`<${Action} order=${order} />`)}</p>` : null}
  </section>`;
}

export function Jobs({ flow, poll }) {
  if (!poll?.data) return html`<${Waiting} poll=${poll} what="jobs" />`;
  const jobs = poll.data;
  return html`${flow.engine === "spark" && !jobs.some((it) => it.kind === "stream") ? html`<p>A stream on Spark is to copy this flow, and none was begun: <${Command} text=${`mm2py job stream run FILE --flow '${flow.flow}'`} /></p>` : null}
    ${jobs.map((job) => html`<${Job} key=${`${job.kind} ${job.id}`} job=${job} at=${poll.at} />`)}
    ${jobs.length ? null : html`<${Empty}>No job of this flow was run.<//>`}
    <p class="buttons"><${Action} order=${copyHistory(flow)}>Copy history<//> <span class="muted">on the command line: <${Command} text=${`mm2py job backfill plan FILE --flow '${flow.flow}'`} /></span></p>
    <p class="muted">Verify and archive run where Spark is, and are begun there: <${Command} text=${`mm2py job verify run FILE --flow '${flow.flow}'`} /> compares both sides,
      <${Command} text=${`mm2py job archive run FILE --flow '${flow.flow}' --to FOLDER`} /> keeps a copy. How far they are is shown here.</p>
    <p class="muted">Failover and failback are under <a href=${flowLink(flow.flow, "failover")}>Failover</a>.</p>`;
}
