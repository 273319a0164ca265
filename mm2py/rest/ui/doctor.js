// "Will it work?": each check of a flow on its clusters and of its properties (lint), when asked, with what mends it.
import { Mark } from "./parts.js";
import { ask, pathOf } from "./polling.js";
import { Component, html } from "./view.js";
import { counted } from "./words.js";

const LEVELS = { error: "bad", warning: "warn", skipped: "unknown", ok: "done" };
const ORDER = Object.keys(LEVELS);

export class Doctor extends Component {
  constructor(props) {
    super(props);
    this.state = { running: false, rows: null, error: "" };
    this.run = async () => {
      this.setState({ running: true, error: "" });
      try {
        const rows = await ask(pathOf("flows", this.props.flow.flow, "doctor"));
        this.setState({ running: false, rows: rows.sort((one, two) => ORDER.indexOf(one.level) - ORDER.indexOf(two.level)) });
      } catch (error) {
        this.setState({ running: false, rows: null, error: error.message });
      }
    };
  }

  render(_, { running, rows, error }) {
    const wrong = rows?.filter((it) => ["error", "warning"].includes(it.level)).length;
    return html`<section aria-labelledby="doctor"><h2 id="doctor">Checks</h2>
      <p>Properties, rights, topics, limits and clocks are checked on both clusters. Nothing is changed. <button type="button" class="action asks" disabled=${running} onClick=${this.run}>${running ? "Checking ..." : "Check now"}</button></p>
      <div role="status">${error ? html`<p class="cause">No checks: ${error}</p>` : null}
      ${rows ? html`<p>${wrong ? `${counted(wrong, "finding")}, the worst first.` : "Nothing is wrong."}</p>
        <div class="scroll" tabindex="0"><table class="ledger"><thead><tr><th scope="col">Check</th><th scope="col">Level</th></tr></thead>
          ${rows.map((it) => html`<tbody><tr><th scope="row">${it.check}</th><td><${Mark} kind=${LEVELS[it.level] || "unknown"} word=${it.level} /></td></tr>
            <tr><td class="cause" colspan="2">${it.finding}${it.remedy ? html`<br /><strong>${it.remedy}</strong>` : null}</td></tr></tbody>`)}</table></div>` : null}</div></section>`;
  }
}
