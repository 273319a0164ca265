// The API: every path of the worker with its parameters, bodies and answers, from /openapi.json; Connect's paths as a list.
import { Empty, Waiting } from "./parts.js";
import { html } from "./view.js";

const CONNECT = [
  ["GET /A/B/connectors, POST", "connectors of the flow A->B, as Kafka Connect has them; plain names"],
  ["GET /A/B/connectors/{name}, /config, /status, /tasks, /topics, /offsets", "one of them"],
  ["PUT, PATCH /A/B/connectors/{name}/config", "its config; DELETE ends it"],
  ["PUT /A/B/connectors/{name}/pause, /resume, /stop; POST /restart", "its state"],
  ["GET /connectors, /connector-plugins, /admin/loggers", "the same over all flows; plugins and their keys; log levels"],
  ["GET /", "version and cluster"],
  ["GET /health, /livez, /readyz", "for probes and people"],
  ["GET /metrics", "for Prometheus"],
];

const kindOf = (schema) => {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.type === "array") return `list of ${kindOf(schema.items) || "values"}`;
  if (schema.anyOf) return schema.anyOf.map(kindOf).join(" or ");
  return schema.type || (schema.enum ? "one of" : "");
};

function Operation({ method, path, about }) {
  const body = about.requestBody?.content?.["application/json"]?.schema;
  const examples = body?.examples || [];
  const [first, ...rest] = (about.description || about.summary || "").split("\n\n");
  return html`<details class="operation"><summary><code><strong>${method.toUpperCase()}</strong> ${path}</code> <span class="muted">${first}</span></summary>
    ${rest.map((text) => html`<p>${text}</p>`)}
    ${about.parameters?.length ? html`<div class="scroll" tabindex="0"><table><thead><tr><th scope="col">Parameter</th><th scope="col">In</th><th scope="col">Kind</th><th scope="col">Meaning</th></tr></thead>
      <tbody>${about.parameters.map((it) => html`<tr><th scope="row">${it.name}${it.required ? "" : html` <span class="muted">optional</span>`}</th><td>${it.in}</td><td>${kindOf(it.schema)}</td><td>${it.description || ""}</td></tr>`)}</tbody></table></div>` : null}
    ${examples.map((it) => html`<p>Body, for example <code>${JSON.stringify(it)}</code></p>`)}
    <div class="scroll" tabindex="0"><table><thead><tr><th scope="col">Answer</th><th scope="col">Is</th><th scope="col">When</th></tr></thead>
      <tbody>${Object.entries(about.responses).map(([status, it]) => html`<tr><th scope="row">${status}</th><td>${kindOf(it.content?.["application/json"]?.schema)}</td><td>${it.description}</td></tr>`)}</tbody></table></div>
  </details>`;
}

export function Api({ poll }) {
  const document = poll?.data;
  if (!document) return html`<h1>API</h1>${poll?.status === 404 ? html`<${Empty}>An ordinary worker has Connect's paths alone.<//>` : html`<${Waiting} poll=${poll} what="description" />`}`;
  const groups = new Map();
  for (const [path, methods] of Object.entries(document.paths)) {
    for (const [method, about] of Object.entries(methods)) {
      const tag = about.tags?.[0] || "others";
      groups.set(tag, [...(groups.get(tag) || []), { method, path, about }]);
    }
  }
  return html`<h1>API</h1>
    <p>As <a href="../openapi.json">openapi.json</a> describes it for generators. Answers are JSON; changes take <code>?dry_run=true</code> and <code>If-Match</code>.
      Sign in with name and password (Basic), a token (Bearer) or a certificate, whichever the worker's file has; readers may ask with GET.</p>
    ${[...groups].map(([tag, operations]) => html`<section aria-label=${tag}><h2>${tag}</h2>${operations.map((it) => html`<${Operation} key=${it.method + it.path} ...${it} />`)}</section>`)}
    <section aria-label="connect"><h2>connect</h2><p>As Kafka Connect's own, with its bodies and status codes.</p>
      <div class="scroll" tabindex="0"><table><tbody>${CONNECT.map(([path, text]) => html`<tr><th scope="row"><code>${path}</code></th><td>${text}</td></tr>`)}</tbody></table></div></section>`;
}
