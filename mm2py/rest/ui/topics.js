// Topics of a flow, and the partitions of one of them with held and failed ones, their cause and remedy.
import { judgeState, rank } from "./judgement.js";
import { Action } from "./changing.js";
import { chooseTopics, TopicActions } from "./orders.js";
import { Command, Empty, flowLink, StateMark, Waiting } from "./parts.js";
import { Table } from "./table.js";
import { html } from "./view.js";
import { count, counted, duration, perSecond } from "./words.js";

const RPO = "how old the oldest record is that is not copied yet";

const trouble = (topic) => topic.failed_partitions * 1e6 + topic.held_partitions * 1e3 + topic.paused_partitions;

function parts(topic) {
  const found = [];
  if (topic.failed_partitions) found.push(`${count(topic.failed_partitions)} failed`);
  if (topic.held_partitions) found.push(`${count(topic.held_partitions)} held`);
  if (topic.paused_partitions) found.push(`${count(topic.paused_partitions)} paused`);
  return found.length ? ` (${found.join(", ")})` : "";
}

const columns = (flow, copying) => [
  { key: "topic", title: "Topic", value: (it) => it.topic, show: (it) => html`<a href=${flowLink(flow, "topics", it.topic)} title=${it.topic}>${it.topic}</a>` },
  { key: "state", title: "State", worst: true, value: trouble, show: (it) => html`<${StateMark} of=${it} copying=${copying} /><span class="muted wide">${parts(it)}</span>` },
  { key: "target", title: "Copy", wide: true, value: (it) => it.target_topic || "", show: (it) => html`<span title=${it.target_topic}>${it.target_topic || "not named yet"}</span>` },
  { key: "partitions", title: "Partitions", wide: true, number: true, value: (it) => it.partitions, show: (it) => count(it.partitions) },
  { key: "lag", title: "Lag (records)", number: true, value: (it) => it.lag_records, show: (it) => count(it.lag_records) },
  { key: "rpo", title: "RPO (time)", hint: RPO, number: true, value: (it) => it.lag_ms, show: (it) => duration(it.lag_ms) },
  { key: "rate", title: "Rate", wide: true, number: true, value: (it) => it.records_per_s, show: (it) => perSecond(it.records_per_s) },
];

export function Topics({ flow, poll, chosen, partitions, copying, config }) {
  const rows = poll.data;
  if (!rows) return html`<${Waiting} poll=${poll} what="topics" />`;
  if (!rows.length) {
    return html`<${Empty}>This flow copies no topic. Choose some that the source has: ${config ? html`<${Action} order=${chooseTopics(flow, config)}>Choose topics<//>` : null} <${Command} text=${`mm2py flow set ${flow.source}/${flow.target} topics='orders.*'`} /><//>`;
  }
  return html`${chosen === undefined ? null : html`<${Partitions} flow=${flow} topic=${chosen} poll=${partitions} copying=${copying} />`}
    <p>${config ? html`<${Action} order=${chooseTopics(flow, config)}>Choose topics<//>` : null}</p>
    <${Table} rows=${rows} columns=${columns(flow.flow, copying)} sort="state" id=${(it) => it.topic} text=${(it) => `${it.topic} ${it.target_topic || ""} ${it.state}`}
      label=${`Topics of ${flow.flow}`} noun="topic" chosen=${chosen} />`;
}

function Partitions({ flow, topic, poll, copying }) {
  const rows = poll?.data && [...poll.data].sort((one, two) => rank(judgeState(one, true)) - rank(judgeState(two, true)) || one.partition - two.partition);
  return html`<section class="detail" aria-labelledby="partitions"><h3 id="partitions">Partitions of ${topic}</h3>
    <a href=${flowLink(flow.flow, "topics")}>close</a> ${rows?.length ? html`<${TopicActions} flow=${flow} topic=${topic} paused=${flow.paused.includes(topic)} />` : null}
    ${!rows ? html`<${Waiting} poll=${poll} what="partitions" />` : null}
    ${rows && !rows.length ? html`<${Empty}>${flow.flow} does not copy a topic of this name: <a href=${flowLink(flow.flow, "topics")}>all topics</a>.<//>` : null}
    ${rows && rows.length ? html`<p class="muted">${counted(rows.length, "partition")}, copied to ${rows[0].target_topic || "a topic that is not named yet"}</p>
      <div class="scroll low" tabindex="0"><table>
        <thead><tr><th scope="col" class="number">Partition</th><th scope="col">State</th><th scope="col" class="number">Lag (records)</th>
          <th scope="col" class="number" title=${RPO}>RPO (time)</th><th scope="col" class="number wide">Rate</th><th scope="col" class="wide">Task and worker</th></tr></thead>
        <tbody>${rows.map((it) => html`<tr key=${it.partition}>
          <th scope="row" class="number">${count(it.partition)}</th>
          <td><${StateMark} of=${it} copying=${copying} /></td>
          <td class="number">${count(it.lag_records)}</td><td class="number">${duration(it.lag_ms)}</td>
          <td class="number wide">${perSecond(it.records_per_s)}</td><td class="wide">${it.task || "no task"} ${it.worker ? `on ${it.worker}` : ""}</td></tr>
          ${it.cause ? html`<tr key=${`${it.partition} cause`}><td></td><td class="cause" colspan="5">${it.cause}</td></tr>` : null}`)}</tbody>
      </table></div>` : null}
  </section>`;
}
