"use strict";
// Say so when polls fail: the page would look as if nothing changed.
const show = (ended) => { document.getElementById("lost").hidden = !ended; };
document.addEventListener("htmx:sendError", () => show(true));
document.addEventListener("htmx:timeout", () => show(true));
document.addEventListener("htmx:responseError", () => show(true));
document.addEventListener("htmx:beforeOnLoad", (event) => { if (event.detail.xhr.status < 400) show(false); });
// "/" moves to the search, as on many sites. On some keyboards it needs shift.
document.addEventListener("keydown", (event) => {
  const search = document.querySelector("input[type=search]");
  const typing = event.target.isContentEditable || event.target.closest("input, select, textarea");
  if (event.key !== "/" || event.ctrlKey || event.altKey || event.metaKey || !search || typing) return;
  event.preventDefault();
  search.focus();
});
