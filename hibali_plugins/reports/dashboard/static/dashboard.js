"use strict";
// Say so when polls fail: the page would look as if nothing changed.
const show = (ended) => { document.getElementById("lost").hidden = !ended; };
document.addEventListener("htmx:sendError", () => show(true));
document.addEventListener("htmx:timeout", () => show(true));
document.addEventListener("htmx:responseError", () => show(true));
document.addEventListener("htmx:beforeOnLoad", (event) => { if (event.detail.xhr.status < 400) show(false); });
