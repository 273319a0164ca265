// One change: its fields, then the dry run with what it would change as a difference, then the confirmation, then what was done.
import { valueText } from "./parts.js";
import { Access, change, read } from "./polling.js";
import { Component, html } from "./view.js";
import { counted, UNKNOWN } from "./words.js";

let shown = null;

/** An order: title, button (what the confirmation says), method, path, `at` (path of the flow, absent: none), revision of the flow that it was begun with, `fields` [{name, label, value, hint, choices}], `body(values)`, `query` or `query(values)`; `planPath`: of a dry run that has a path of its own, whose answer `path(plan)` starts and `planned(plan)` shows; `choose()`: answers with choices by name of field. */
export const openChange = (order) => shown?.open(order);

/** A button that opens a change; a caller who may only read has none. */
export const Action = ({ order, children, label }) =>
  Access.mayChange ? html`<button type="button" class="action" aria-label=${label} onClick=${() => openChange(order)}>${children || order.button}</button>` : null;

const SAID = {
  403: "You may not do this.",
  404: "It is not there any more.",
  409: "Not now. Nothing was changed.",
  412: "The flow was changed after this change was planned. Nothing was changed.",
  422: "Correct what you entered. Nothing was changed.",
  400: "This is refused. Nothing was changed.",
};

function said(error, confirmed) {
  if (SAID[error.status]) return SAID[error.status];
  if (!confirmed) return "The worker gave no answer. Nothing was changed.";
  return "Whether the change was made is not known: the history of the flow tells.";
}

export class ChangeDialog extends Component {
  constructor(props) {
    super(props);
    this.state = { order: null };
    this.opened = (element) => element && !element.open && element.showModal();
    this.close = () => this.setState({ order: null });
  }

  componentDidMount() {
    shown = this;
  }

  open(order) {
    const values = Object.fromEntries((order.fields || []).map((field) => [field.name, field.value || ""]));
    this.setState({ order, values, revision: order.revision, plan: null, done: null, error: null, asking: false, choices: {} });
    // Without them everything can be typed.
    order.choose?.().then((choices) => this.setState({ choices }), () => null);
    // Without a dry run, and nothing of its settings changes: the text says what it does.
    if (order.direct) this.setState({ plan: { changes: [] } });
    else if (!order.fields) this.send(order, values, order.revision, true);
  }

  /** After 412 the flow of now counts: what is confirmed next is what is shown next. */
  async again() {
    const { order, values, error } = this.state;
    if (error?.status === 412 && order.at) {
      const flow = await read(order.at).catch(() => null);
      if (flow) this.setState({ revision: flow.revision });
      await this.send(order, values, flow?.revision ?? this.state.revision, true);
    } else {
      await this.send(order, values, this.state.revision, true);
    }
  }

  async send(order, values, revision, dry) {
    this.setState({ asking: true, error: null });
    try {
      const asked = typeof order.query === "function" ? order.query(values) : order.query;
      const query = new URLSearchParams({ ...asked, ...(dry && !order.planPath ? { dry_run: true } : {}) }).toString();
      const starts = !dry && typeof order.path === "function";
      const path = starts ? order.path(this.state.plan) : (dry && order.planPath) || order.path;
      const result = await change(order.method, `${path}${query ? `?${query}` : ""}`, starts ? undefined : order.body?.(values), revision);
      if (!dry) this.props.after();
      if (this.state.order !== order) return;
      this.setState(dry ? { asking: false, plan: result } : { asking: false, done: result });
    } catch (error) {
      if (this.state.order === order) this.setState({ asking: false, error: { text: error.message, said: said(error, !dry), status: error.status }, ...(error.status === 412 ? { plan: null } : {}) });
      this.props.after();
    }
  }

  render() {
    const { order, values, revision, plan, done, error, asking, choices } = this.state;
    if (!order) return null;
    const enter = order.fields && !plan && !done;
    const fresh = () => this.again();
    return html`<dialog ref=${this.opened} onClose=${this.close} aria-labelledby="change">
      <h2 id="change">${order.title}</h2>
      ${order.text && !done ? html`<p>${order.text}</p>` : null}
      ${enter ? html`<form method="dialog" onSubmit=${(event) => { event.preventDefault(); fresh(); }}>
        ${order.fields.map((field) => html`<p><label>${field.label}<input name=${field.name} value=${values[field.name]} placeholder=${field.hint || ""} autocomplete="off" spellcheck=${false} list=${choices[field.name] ? `choices-${field.name}` : null}
          onInput=${(event) => this.setState({ values: { ...values, [field.name]: event.currentTarget.value } })} /></label>${choices[field.name] ? html`<datalist id=${`choices-${field.name}`}>${choices[field.name].map((it) => html`<option value=${it.value}>${it.note}</option>`)}</datalist>` : null}</p>`)}
        ${choices.note ? html`<p class="muted">${choices.note}</p>` : null}
        <p class="buttons"><button type="submit" class="action" disabled=${asking}>Show what it would change</button> <button type="button" onClick=${this.close}>Cancel</button></p></form>` : null}
      ${asking && !plan ? html`<p class="muted" role="status">Asking the worker ...</p>` : null}
      ${error ? html`<div class="finding bad" role="alert"><p><strong>${error.said}</strong></p><p>${error.text}</p></div>` : null}
      ${plan && !done ? html`${order.direct ? null : html`<${Planned} plan=${plan} order=${order} />`}
        <p class="buttons"><button type="button" class="action" disabled=${asking || plan.refused?.length > 0} onClick=${() => this.send(order, values, revision, false)}>${asking ? "Asking the worker ..." : order.button}</button>
          ${order.fields ? html`<button type="button" onClick=${() => this.setState({ plan: null, error: null })}>Back</button>` : null}
          <button type="button" onClick=${this.close}>Cancel</button></p>` : null}
      ${done ? html`<p class="verdict" role="status"><span class="mark good"><span class="sign" aria-hidden="true">✔︎</span> ${order.did || "Done"}${done.revision ? `, revision ${done.revision} of the history` : ""}${order.did ? "" : "."}</span></p>
        ${done.not_there?.length ? html`<p>No task copies this now: ${done.not_there.join(", ")}. It rests when it appears.</p>` : null}
        ${done.still_paused?.length ? html`<p>Still paused, because they were paused alone: ${done.still_paused.join(", ")}</p>` : null}
        <p class="buttons"><button type="button" class="action" onClick=${this.close}>Close</button></p>` : null}
      ${error && !plan && !enter && !asking ? html`<p class="buttons"><button type="button" class="action" onClick=${fresh}>Plan again</button> <button type="button" onClick=${this.close}>Cancel</button></p>` : null}
    </dialog>`;
  }
}

/** What changes, one thing below the other: before and after. */
export const Difference = ({ changes }) => html`<dl class="difference">${changes.map((change) => html`<dt>${change.key}</dt>
  <dd><span class="before"><span class="sign" aria-hidden="true">−</span> before ${valueText(change.before)}</span><span class="after"><span class="sign" aria-hidden="true">+</span> after ${valueText(change.after)}</span></dd>`)}</dl>`;

const names = (list, all) => `${list.slice(0, 20).join(", ")}${all > Math.min(20, list.length) ? ` and ${counted(all - Math.min(20, list.length), "more topic")}` : ""}`;

/** Which topics begin and end to be copied; `asked`: that is what the change is about. */
function Chosen({ topics, asked }) {
  if (!topics) return asked ? html`<p>Which topics that is, is not known now: the source gave no list.</p>` : null;
  if (!topics.starts && !topics.stops) return html`<p>The same topics are copied: no topic of the source begins or ends to be.</p>`;
  return html`<ul class="chosen-topics">${topics.starts ? html`<li><span class="after"><span class="sign" aria-hidden="true">+</span> ${counted(topics.starts, "topic")} will be copied: ${names(topics.starting, topics.starts)}</span></li>` : null}
    ${topics.stops ? html`<li><span class="before"><span class="sign" aria-hidden="true">−</span> ${counted(topics.stops, "topic")} will not be copied any more, copies stay: ${names(topics.stopping, topics.stops)}</span></li>` : null}</ul>`;
}

function Planned({ plan, order }) {
  if (order.planned) return order.planned(plan);
  if (plan.refused) return html`<p>${plan.plan.would_lose < 0 ? UNKNOWN : counted(plan.plan.would_lose, "offset")} would not be copied.</p>
    ${plan.refused.length ? html`<div class="finding bad" role="alert"><p><strong>It would be refused:</strong></p>${plan.refused.map((it) => html`<p>${it}</p>`)}</div>` : html`<p>It would be accepted.</p>`}`;
  if (!plan.changes.length) return html`<p>Nothing of its settings changes.</p>`;
  return html`<p>${counted(plan.changes.length, "thing")} would change:</p><${Difference} changes=${plan.changes} /><${Chosen} topics=${plan.topics} asked=${order.topics} />`;
}
