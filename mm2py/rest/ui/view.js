// Markup for all parts of the page. Texts of the API reach the document as text nodes and attributes only.
import { Component, h, render } from "./vendor/preact.js";
import htm from "./vendor/htm.js";

export const html = htm.bind(h);
export { Component, render };
