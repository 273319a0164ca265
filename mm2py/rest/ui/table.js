// A table of thousands of rows: search, sort, and only the rows that are visible are in the document.
import { Component, html } from "./view.js";
import { count } from "./words.js";

const ROW_PX = 38;
const SPARE = 8;

const compare = (one, two) => {
  const [a, b] = [one ?? -1, two ?? -1];
  return typeof a === "string" ? a.localeCompare(b) : a - b;
};

/** `columns`: {key, title, number, worst, wide, hint, show(row), value(row)}; `text(row)` is what the search looks into; `id(row)` a row's key. */
export class Table extends Component {
  constructor(props) {
    super(props);
    this.state = { query: "", sort: props.sort, down: props.down ?? true, top: 0, height: 480 };
    this.scrolled = (event) => this.setState({ top: event.currentTarget.scrollTop });
    this.typed = (event) => this.setState({ query: event.currentTarget.value, top: 0 });
    this.sized = (element) => element && element.clientHeight && element.clientHeight !== this.state.height && this.setState({ height: element.clientHeight });
  }

  rows() {
    const { rows, columns, text } = this.props;
    const { query, sort, down } = this.state;
    const asked = [rows, query, sort, down];
    if (this.cached && this.cached.asked.every((item, index) => item === asked[index])) return this.cached.rows;
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    const value = columns.find((column) => column.key === sort).value;
    const found = rows.filter((row) => words.every((word) => text(row).toLowerCase().includes(word)));
    found.sort((one, two) => (down ? compare(value(two), value(one)) : compare(value(one), value(two))));
    this.cached = { asked, rows: found };
    return found;
  }

  heading(column) {
    const { sort, down } = this.state;
    const sorted = sort === column.key;
    const click = () => this.setState({ sort: column.key, down: sorted ? !down : Boolean(column.number || column.worst) });
    return html`<th scope="col" class=${classes(column)} title=${column.hint} aria-sort=${sorted ? (down ? "descending" : "ascending") : "none"}>
      <button type="button" onClick=${click}>${column.title}<span aria-hidden="true">${sorted ? (down ? " ▾" : " ▴") : ""}</span></button></th>`;
  }

  render({ columns, rows, id, label, noun, plural = `${noun}s`, chosen }) {
    const found = this.rows();
    const { top, height, query } = this.state;
    const first = Math.max(0, Math.min(Math.floor(top / ROW_PX) - SPARE, found.length));
    const last = Math.min(found.length, Math.ceil((top + height) / ROW_PX) + SPARE);
    const fill = (px) => px > 0 && html`<tr aria-hidden="true" class="fill"><td><svg width="1" height=${px}></svg></td></tr>`;
    return html`<div class="find"><label>Search ${plural} <input type="search" value=${query} onInput=${this.typed} spellcheck="false" autocomplete="off" /></label>
        <span class="muted" role="status">${count(found.length)} of ${count(rows.length)} ${rows.length === 1 ? noun : plural}</span></div>
      <div class="window" ref=${this.sized} onScroll=${this.scrolled} tabindex="0" role="region" aria-label=${label}>
        <table class="rows" aria-rowcount=${found.length + 1}>
          <thead><tr>${columns.map((column) => this.heading(column))}</tr></thead>
          <tbody>${fill(first * ROW_PX)}
            ${found.slice(first, last).map((row, index) => html`<tr key=${id(row)} aria-rowindex=${first + index + 2} class=${id(row) === chosen ? "chosen" : ""}>
              ${columns.map((column) => html`<td class=${classes(column)}>${column.show(row)}</td>`)}</tr>`)}
            ${fill((found.length - last) * ROW_PX)}</tbody>
        </table></div>
      ${found.length ? null : html`<p class="empty">No ${noun} matches this search: shorten it.</p>`}`;
  }
}

const classes = (column) => [column.number && "number", column.wide && "wide"].filter(Boolean).join(" ");
