// The page of one flow: what is wrong with it, its numbers, and a part of it: topics, groups, failover, ledger, jobs, tasks, properties, history.
import { History, Properties } from "./changes.js";
import { Doctor } from "./doctor.js";
import { Failover } from "./failover.js";
import { Groups } from "./groups.js";
import { Forecast } from "./forecast.js";
import { Jobs } from "./jobs.js";
import { copies, findings, judge } from "./judgement.js";
import { Ledger } from "./ledger.js";
import { FlowActions } from "./orders.js";
import { Finding, Overview } from "./overview.js";
import { Empty, Fact, flowLink, Mark, StateMark, Waiting, When } from "./parts.js";
import { Topics } from "./topics.js";
import { Trend } from "./trend.js";
import { html } from "./view.js";
import { bytesPerSecond, count, counted, duration, perSecond } from "./words.js";

export const PARTS = { topics: "Topics", groups: "Groups", failover: "Failover", ledger: "Ledger", jobs: "Jobs", tasks: "Connectors and tasks", config: "Properties", history: "History" };

export function FlowPage({ name, part, unknown, chosen, polls, stale, narrow }) {
  const { flow: poll } = polls;
  const flow = poll.data;
  const back = html`<p><a href="#/">All flows</a></p>`;
  if (!flow) {
    if (poll.status !== 404) return html`${back}<${Waiting} poll=${poll} what=${`numbers of ${name}`} />`;
    return html`${back}<h1>No such flow</h1><${Empty}>This worker has no flow ${name}. Its flows are below.<//><${Overview} poll=${polls.flows} narrow=${narrow} />`;
  }
  const { kind, text, word } = judge(flow);
  const tabs = html`<nav aria-label=${`Parts of ${flow.flow}`} class="tabs">${Object.entries(PARTS).map(([key, title]) =>
      html`<a href=${flowLink(flow.flow, key)} aria-current=${key === part ? "page" : null}>${title}</a>`)}</nav>
    ${unknown === undefined ? null : html`<${Empty}>A flow has no part ${unknown}: these are Topics.<//>`}`;
  const chosenPart = html`<section aria-label=${PARTS[part]}><${Part} flow=${flow} part=${part} chosen=${chosen} polls=${polls} copying=${copies(flow) && !stale} /></section>`;
  // On a phone what was chosen comes before the numbers of the whole flow.
  const first = narrow && part !== "topics";
  return html`${back}
    <h1>Flow ${flow.flow}</h1>
    <p class="verdict" role="status"><${Mark} kind=${stale ? "unknown" : kind} word=${`${stale ? "Last known: " : ""}${word}: ${text}`} />
      ${flow.since_ms ? html`<span class="muted"> since <${When} ms=${flow.since_ms} /></span>` : null}</p>
    ${narrow ? tabs : null}${first ? chosenPart : null}
    <ul class="findings">${findings([flow]).map((finding) => html`<${Finding} finding=${finding} stale=${stale} />`)}</ul>
    <${FlowActions} flow=${flow} />
    <${Numbers} flow=${flow} />
    <${Forecast} flow=${flow} poll=${polls.forecast} stale=${stale} />
    <${Trend} poll=${polls.samples} workers=${flow.workers.length} />
    ${narrow ? null : tabs}${first ? null : chosenPart}`;
}

function Part({ flow, part, chosen, polls, copying }) {
  if (part === "tasks") return html`<${Tasks} flow=${flow} />`;
  if (part === "jobs") return html`<${Jobs} flow=${flow} poll=${polls.jobs} />`;
  if (part === "groups") return html`<${Groups} flow=${flow} poll=${polls.groups} chosen=${chosen} copying=${copying} />`;
  if (part === "failover") return html`<${Failover} flow=${flow} polls=${polls} copying=${copying} />`;
  if (part === "ledger") return html`<${Ledger} flow=${flow} poll=${polls.ledger} failover=${polls.failover} copying=${copying} />`;
  if (part === "config") return html`<${Doctor} flow=${flow} /><${Properties} flow=${flow} poll=${polls.config} />`;
  if (part === "history") return html`<${History} flow=${flow} poll=${polls.history} />`;
  return html`<${Topics} flow=${flow} poll=${polls.topics} chosen=${chosen} partitions=${polls.partitions} copying=${copying} config=${polls.config?.data} />`;
}

const RPO = "recovery point: how old the oldest record is that is not copied; what a loss of the source would cost now";

function Numbers({ flow }) {
  return html`<dl class="facts">
    <${Fact} name="RPO (time)" title=${RPO}>${duration(flow.lag_ms)}<//>
    <${Fact} name="Lag">${counted(flow.lag_records, "record")}<//>
    <${Fact} name="Rate">${perSecond(flow.records_per_s)}<//>
    <${Fact} name="Bytes">${bytesPerSecond(flow.bytes_per_s)}<//>
    <${Fact} name="Topics" title="without heartbeats">${count(flow.topics)}<//>
    <${Fact} name="Partitions">${count(flow.partitions)}<//>
    <${Fact} name="Failed">${counted(flow.failed_partitions, "partition")}<//>
    <${Fact} name="Held" title="accept nothing now, or another job has them">${counted(flow.held_partitions, "partition")}<//>
    <${Fact} name="Lost since start" title="since the start of each worker; the ledger has all">${counted(flow.records_lost, "record")}<//>
    <${Fact} name="Workers">${count(flow.workers.length)}<//>
    <${Fact} name="Engine">${flow.engine}<//>
  </dl>`;
}

function Tasks({ flow }) {
  if (!flow.connectors.length) return html`<${Empty}>This flow has no connector yet: it starts, or waits for a cluster.<//>`;
  return html`<div class="scroll" tabindex="0"><table>
    <thead><tr><th scope="col">Connector or task</th><th scope="col">State</th><th scope="col">Worker</th></tr></thead>
    ${flow.connectors.map((it) => html`<tbody key=${it.name}>
      <tr class="group"><th scope="row">${it.name}</th><td><${StateMark} of=${it} /></td><td>${it.worker || "none"}</td></tr>
      ${it.tasks.map((task) => html`<tr key=${task.number}><th scope="row" class="inner">task ${task.number}</th><td><${StateMark} of=${task} /></td><td>${task.worker || "none"}</td></tr>`)}
      ${it.tasks.length ? null : html`<tr><td class="inner muted" colspan="3">no task</td></tr>`}</tbody>`)}
  </table></div>`;
}
