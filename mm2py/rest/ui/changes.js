// Who changed what, and the properties in force with the origin of each value.
import { Action, Difference } from "./changing.js";
import { addProperty, rollback, setProperty } from "./orders.js";
import { Empty, valueText, Waiting, When } from "./parts.js";
import { Table } from "./table.js";
import { html } from "./view.js";
import { count } from "./words.js";

export function History({ flow, poll }) {
  const rows = poll.data;
  if (!rows) return html`<${Waiting} poll=${poll} what="history" />`;
  if (!rows.length) return html`<${Empty}>Nothing was changed: the worker's file is in force.<//>`;
  return html`<ol class="history">${rows.map((it) => html`<li key=${it.revision}>
    <div class="head"><strong>${it.action}</strong> ${it.target} <span class="muted">by ${it.by}, <${When} ms=${it.at_ms} />, revision ${count(it.revision)}</span></div>
    ${it.changes.length ? html`<${Difference} changes=${it.changes} />` : null}
    ${it.revision === flow.revision ? html`<span class="muted">in force</span>` : html`<${Action} order=${rollback(flow, it.revision)} label=${`Go back to revision ${it.revision}`}>Go back to this<//>`}
  </li>`)}</ol>
  <p><${Action} order=${rollback(flow, 0)}>Go back to the worker's file<//></p>`;
}

function origin(it) {
  if (it.changed_by !== null) return html`<span>${it.changed_by}, <${When} ms=${it.changed_at_ms} />, revision ${count(it.revision)}; the file has ${valueText(it.file_value)}</span>`;
  return it.file_value === null ? "set by mm2py" : "file";
}

const columns = (flow) => [
  { key: "key", title: "Property", value: (it) => it.key, show: (it) => html`<span title=${it.key}>${it.key}</span>` },
  { key: "value", title: "Value", value: (it) => it.value || "", show: (it) => html`<span title=${it.value}>${valueText(it.value)}</span>` },
  { key: "origin", title: "Origin", value: (it) => it.changed_at_ms || 0, show: origin },
  { key: "change", title: "Change", value: () => 0, show: (it) => html`<${Action} order=${setProperty(flow, it.connector, it)} label=${`Change ${it.key} of ${it.connector}`}>change<//>` },
  { key: "connector", title: "Connector", wide: true, value: (it) => it.connector, show: (it) => it.connector },
];

export function Properties({ flow, poll }) {
  if (!poll.data) return html`<${Waiting} poll=${poll} what="properties" />`;
  if (poll.rows?.of !== poll.data) {
    poll.rows = { of: poll.data, all: poll.data.flatMap((it) => it.properties.map((property) => ({ ...property, connector: it.connector }))) };
  }
  const rows = poll.rows.all;
  if (!rows.length) return html`<${Empty}>The properties are not read yet: the flow starts, or waits for a cluster.<//>`;
  return html`<p><${Action} order=${addProperty(flow)}>Add a property<//></p>
    <${Table} rows=${rows} columns=${columns(flow)} sort="key" down=${false} id=${(it) => `${it.connector} ${it.key}`}
    text=${(it) => `${it.key} ${it.value || ""} ${it.connector}`} label="Properties in force" noun="property" plural="properties" />`;
}
