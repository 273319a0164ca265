// The first page: what is wrong, the map, the list of flows.
import { Action } from "./changing.js";
import { failoverNow, findings, judge, MARKS, rank, verdict } from "./judgement.js";
import { isDrawn, FlowMap } from "./map.js";
import { createFlow } from "./orders.js";
import { Command, Empty, flowLink, Mark, Waiting, When } from "./parts.js";
import { html } from "./view.js";
import { count, duration, perSecond, some } from "./words.js";

const MOST_PLACES = 4;
const MOST_LINES = 30;
// What is asked first of a flow, beside what is wrong and whether it can fail over: was something lost, who changed it.
const QUESTIONS = [["ledger", "Ledger"], ["history", "History"]];

function Places({ where }) {
  if (!where.length) return null;
  return html`<span class="where">${some(where, MOST_PLACES)}</span>`;
}

export function Finding({ finding, stale }) {
  const { kind, flow, where, text, commands, sinceMs } = finding;
  return html`<li class=${`finding ${stale ? "unknown" : kind}`}>
    <div class="head">
      <${Mark} kind=${stale ? "unknown" : kind} word=${MARKS[kind].word} />
      <a href=${flowLink(flow.flow)}>${flow.flow}</a> <span class="muted">${flow.state}</span>
      <${Places} where=${where} />
      ${kind !== "note" && sinceMs ? html`<span class="muted">since <${When} ms=${sinceMs} /></span>` : null}
    </div>
    <p>${text}</p>
    ${commands.map((it) => html`<${Command} text=${it} /> `)}
  </li>`;
}

export function Wrong({ flows, stale }) {
  const all = findings(flows, true);
  const summary = verdict(flows);
  return html`<section aria-labelledby="wrong">
    <h2 id="wrong">What is wrong</h2>
    <p class="verdict" role="status"><${Mark} kind=${stale ? "unknown" : summary.kind} word=${stale ? `Last known: ${summary.text}` : summary.text} /></p>
    <${CanMove} flows=${flows} stale=${stale} />
    <ul class="findings">${all.slice(0, MOST_LINES).map((finding) => html`<${Finding} finding=${finding} stale=${stale} />`)}</ul>
    ${all.length > MOST_LINES ? html`<p class="muted">and ${count(all.length - MOST_LINES)} more: the flows below have them</p>` : null}
  </section>`;
}

/** Can we fail over now? One sentence; each flow's answer is in the list. */
function CanMove({ flows, stale }) {
  const found = flows.map((flow) => ({ flow, now: failoverNow(flow) })).filter(({ now }) => now[0] !== "off");
  const not = found.filter(({ now }) => ["bad", "unknown"].includes(now[0])).sort((one, two) => rank(one.now[0]) - rank(two.now[0]));
  if (!found.length) return null;
  const kind = stale ? "unknown" : not.length ? not[0].now[0] : found.some(({ now }) => now[0] === "warn") ? "warn" : "good";
  const word = `${count(found.length - not.length)} of ${count(found.length)} ready`;
  return html`<p>Can we fail over now? <${Mark} kind=${kind} word=${stale ? `Last known: ${word}` : word} />${not.length ? html`; ${not.slice(0, MOST_PLACES).map(({ flow, now }, index) => html`${index ? "; " : ""}<a href=${flowLink(flow.flow, "failover")}>${flow.flow}</a> ${now[1]}: ${now[2]}`)}${not.length > MOST_PLACES ? ` and ${count(not.length - MOST_PLACES)} more` : ""}` : null}. <span class="muted">By their own numbers: the plan of each asks both clusters.</span></p>`;
}

function Row({ flow, stale }) {
  const [readyKind, ready, why] = failoverNow(flow);
  const { kind, text, word } = judge(flow);
  return html`<tr>
    <th scope="row" class="name" title=${flow.flow}><a href=${flowLink(flow.flow)}>${flow.flow}</a></th>
    <td><${Mark} kind=${stale ? "unknown" : kind} word=${word} /><span class="muted wide"> ${text}</span></td>
    <td><a href=${flowLink(flow.flow, "failover")} aria-label=${`${ready}: failover of ${flow.flow}`} title=${why || "its plan asks both clusters"}><${Mark} kind=${stale ? "unknown" : readyKind} word=${ready} /></a><span class="muted wide"> ${why === text ? "" : why}</span></td>
    <td class="number wide">${count(flow.lag_records)}</td>
    <td class="number">${duration(flow.lag_ms)}</td>
    <td class="number wide">${perSecond(flow.records_per_s)}</td>
    <td class="number wide">${count(flow.topics)}</td>
    <td class="number wide">${count(flow.partitions)}</td>
    <td class="wide">${QUESTIONS.map(([part, word]) => html`<a class="more" href=${flowLink(flow.flow, part)} aria-label=${`${word} of ${flow.flow}`}>${word}</a> `)}</td>
  </tr>`;
}

function List({ flows, stale }) {
  const groups = bySource(flows);
  const named = groups.size > 1 && flows.length > groups.size;
  return html`<section aria-labelledby="list"><h2 id="list">Flows</h2><div class="scroll" tabindex="0"><table class="flows">
    <thead><tr><th scope="col">Flow</th><th scope="col">State</th><th scope="col" title="can clients be moved now, as far as the flow's own numbers tell; its plan asks both clusters">Failover now</th><th scope="col" class="number wide">Lag (records)</th>
      <th scope="col" class="number" title="recovery point: how old the oldest record is that is not copied">RPO (time)</th>
      <th scope="col" class="number wide">Rate</th><th scope="col" class="number wide">Topics</th><th scope="col" class="number wide">Partitions</th><th scope="col" class="wide">Look at</th></tr></thead>
    ${[...groups].map(([source, part]) => html`<tbody>
      ${named ? html`<tr class="group"><th scope="rowgroup" colspan="9">from ${source}</th></tr>` : null}
      ${part.map((flow) => html`<${Row} key=${flow.flow} flow=${flow} stale=${stale} />`)}</tbody>`)}
  </table></div></section>`;
}

function bySource(flows) {
  const found = new Map();
  for (const flow of flows) found.set(flow.source, [...(found.get(flow.source) || []), flow]);
  return found;
}

export function Overview({ poll, narrow }) {
  const flows = poll.data;
  if (!flows) return html`<${Waiting} poll=${poll} what="flows" />`;
  if (!flows.length) {
    return html`<${Empty}>No flow is enabled. Add one: write <code>A->B.enabled = true</code> into the worker's file and start it again,
      or, between two clusters of the file, <code>mm2py flow create A/B</code>. <${Action} order=${createFlow()}>Add a flow<//><//>`;
  }
  return html`<${Wrong} flows=${flows} stale=${poll.stale} />
    ${isDrawn(flows, narrow) ? html`<section aria-labelledby="map"><h2 id="map">Map</h2><${FlowMap} flows=${flows} narrow=${narrow} stale=${poll.stale} /></section>` : null}
    <${List} flows=${flows} stale=${poll.stale} />
    <p><${Action} order=${createFlow()}>Add a flow<//></p>`;
}
