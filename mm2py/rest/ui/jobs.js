// Copies of history beside a flow: how far, how fast, until when, and pause, resume, cancel.
import { Action } from "./changing.js";
import { Command, Empty, Mark, Waiting, When } from "./parts.js";
import { html } from "./view.js";
import { bytesPerSecond, count, counted, duration } from "./words.js";

const KINDS = { RUNNING: "plain", PAUSED: "off", PLANNED: "off", DONE: "good", CANCELLED: "off", FAILED: "bad" };
const RATE_OVER_MS = 60_000;

const seen = new Map();

/** Offsets and bytes per second over the last minute, null while they are not known. */
function rates({ id, state, bytes, offsets_left: left }, at) {
  const looks = seen.get(id) || [];
  if (looks.at(-1)?.at !== at) looks.push({ at, bytes, left });
  while (looks.length > 2 && at - looks[0].at > RATE_OVER_MS) looks.shift();
  seen.set(id, looks);
  const passedS = (at - looks[0].at) / 1000;
  if (state !== "RUNNING" || passedS < 1) return { perS: null, bytesPerS: null };
  return { perS: (looks[0].left - left) / passedS, bytesPerS: (bytes - looks[0].bytes) / passedS };
}

const direct = (job, action, button, text) => ({
  method: "POST", path: `jobs/backfill/${encodeURIComponent(job.id)}:${action}`, title: `${button} the copy of history of ${job.flow}`, button, text, direct: true,
});

function actions(job) {
  const cancel = direct(job, "cancel", "Cancel", "What is copied stays, and the running flow continues every partition where it is.");
  if (job.state === "PLANNED" || job.state === "FAILED") return [direct(job, "start", "Start", "Partitions are copied from where they are, beside the running flow."), cancel];
  if (job.state === "PAUSED" || job.wanted === "PAUSE") return [direct(job, "resume", "Resume", "Lanes continue at the next record."), cancel];
  return job.state === "RUNNING" ? [direct(job, "pause", "Pause", "Lanes read nothing until it is resumed."), cancel] : [];
}

function Job({ job, at }) {
  const whole = job.records + job.offsets_left;
  const done = whole ? Math.floor((job.records / whole) * 100) : 0;
  const { perS, bytesPerS } = rates(job, at);
  const end = perS > 0 ? duration((job.offsets_left / perS) * 1000) : "not known";
  const states = Object.entries(job.partitions_by_state).map(([state, number]) => `${count(number)} ${state.toLowerCase().replaceAll("_", " ")}`).join(", ");
  return html`<section class="detail">
    <div class="head"><h3>Backfill</h3> <${Mark} kind=${KINDS[job.state] || "unknown"} word=${job.state} />
      <span class="muted">${job.topics || "all topics"}, from ${job.from} to ${job.to}${job.by ? `, by ${job.by}` : ""} ${job.started_ms ? html`since <${When} ms=${job.started_ms} />` : null}</span></div>
    <p><progress max="100" value=${done} aria-label="part of the offsets that is copied"></progress> ${done} %: ${counted(job.records, "record")} copied, about ${count(job.offsets_left)} offsets left</p>
    <p class="muted">${job.state === "RUNNING" ? `${bytesPerSecond(bytesPerS)}; ends in ${end}. ` : ""}${states ? `Partitions: ${states}.` : ""}</p>
    ${job.cause ? html`<p class="cause">${job.cause}</p>` : null}
    <p class="buttons">${actions(job).map((order) => html`<${Action} order=${order} />`)}</p>
  </section>`;
}

export function Jobs({ flow, poll }) {
  if (!poll?.data) return html`<${Waiting} poll=${poll} what="jobs" />`;
  const jobs = poll.data.filter((it) => it.flow === flow.flow);
  const name = `${flow.source}/${flow.target}`;
  return html`${flow.engine === "spark" ? html`<p>A stream on Spark copies this flow: <${Command} text=${`mm2py job stream status ${name}`} /></p>` : null}
    ${jobs.map((job) => html`<${Job} key=${job.id} job=${job} at=${poll.at} />`)}
    ${jobs.length ? null : html`<${Empty}>No copy of history was planned. Plan one: <${Command} text=${`mm2py job backfill plan FILE ${name}`} /><//>`}
    <p class="muted">Verify, archive, restore and rerun report where they are started.</p>`;
}
