// What the source deletes before it is copied, if rates stay as they are: the soonest first.
import { flowLink, Mark, When } from "./parts.js";
import { html } from "./view.js";
import { bytes, count, counted, duration } from "./words.js";

const MOST_ROWS = 12;
const SOON_S = 3600;

const limit = (it) => `${it.by} = ${it.by === "retention.ms" ? duration(it.limit) : bytes(it.limit)}`;

/** Nothing where all partitions keep up, or where an older worker leads the flow. */
export function Forecast({ flow, poll, stale }) {
  const rows = poll?.data;
  if (!rows?.length) return null;
  const more = rows.length - MOST_ROWS;
  return html`<section aria-labelledby="forecast"><h2 id="forecast">Retention overtakes</h2>
    <p class="muted">${flow.source} deletes what is not copied yet, at the rates of the last minutes. Raise the named limit of the topic on ${flow.source},
      or see why the copy is slow.</p>
    <div class="scroll" tabindex="0"><table>
      <thead><tr><th scope="col">Topic</th><th scope="col" class="number">Partition</th><th scope="col">In</th><th scope="col" class="wide">At</th>
        <th scope="col" class="number">Records wait</th><th scope="col" class="number">Bytes wait</th><th scope="col" class="wide">By</th></tr></thead>
      <tbody>${rows.slice(0, MOST_ROWS).map((it) => html`<tr key=${`${it.topic} ${it.partition}`}>
        <th scope="row" class="name" title=${it.topic}><a href=${flowLink(flow.flow, "topics", it.topic)}>${it.topic}</a></th><td class="number">${count(it.partition)}</td>
        <td><${Mark} kind=${stale ? "unknown" : it.in_s < SOON_S ? "bad" : "warn"} word=${it.in_s > 0 ? duration(it.in_s * 1000) : "now"} /></td>
        <td class="wide"><${When} ms=${it.at_ms} /></td><td class="number">${count(it.records)}</td>
        <td class="number">${bytes(it.size_bytes)}</td><td class="wide">${limit(it)}</td></tr>`)}</tbody>
    </table></div>
    ${more > 0 ? html`<p class="muted">and ${counted(more, "partition")} after these: GET /flows/${flow.flow}/forecast</p>` : null}
  </section>`;
}
