// What pages need beyond links and forms: keys, the theme, the slider through time, and news from the server.
"use strict";
(() => {
  const $ = (selector, root = document) => root.querySelector(selector);
  const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

  // -- theme -----------------------------------------------------------------------------------------------------
  const themes = ["auto", "light", "dark"];
  const theme = () => document.documentElement.dataset.theme || "auto";
  const showTheme = () => {
    const button = $("#theme");
    if (button) button.setAttribute("aria-label", `Colours: ${theme()}. Change`);
    if (button) button.title = `Colours: ${theme()}`;
  };
  const nextTheme = () => {
    const next = themes[(themes.indexOf(theme()) + 1) % themes.length];
    if (next === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    try { localStorage.setItem("perdure-theme", next); } catch { /* only for this page, then */ }
    showTheme();
  };

  // -- news ------------------------------------------------------------------------------------------------------
  // Elements with data-live="topic" ask for themselves again when their topic has changed.
  let source = null;
  const missing = new Set();
  // A step that could not be had is not made good by news that can be.
  const stale = (is, what = "news") => {
    missing[is ? "add" : "delete"](what);
    const note = $("#stale");
    if (note) note.hidden = !missing.size;
  };
  const listen = () => {
    // Browsers keep few connections to one server: a page that nobody looks at leaves its own to the others.
    const topics = new Set(document.hidden ? [] : $$("[data-live]").map((e) => e.dataset.live));
    const wanted = [...topics].sort().map((t) => `topic=${encodeURIComponent(t)}`).join("&");
    if (source && source.wanted === wanted) return;
    if (source) source.close();
    source = null;
    if (!wanted) return;
    const mine = source = new EventSource(`/live?${wanted}`);
    source.wanted = wanted;
    source.addEventListener("open", () => stale(false));
    source.addEventListener("error", () => {
      if (mine !== source) return;
      stale(true);
      // A connection that broke is made again by the browser; one that was refused only by us.
      if (mine.readyState === EventSource.CLOSED) { source = null; setTimeout(listen, 2000); }
    });
    source.addEventListener("change", (event) => {
      const [topic, mark] = JSON.parse(event.data);
      // An element knows the mark of what it shows: nothing that happened while the page was made is missed.
      $$("[data-live]").filter((e) => e.dataset.live === topic && e.dataset.mark !== mark).forEach(refresh);
    });
  };
  const refresh = (element) => htmx.trigger(element, "changed");
  // Nothing is taken away from under somebody: what was typed, ticked or unfolded stays when news come in.
  const theirs = (name, node) => {
    if (name === "open") return node.localName === "details";
    if (name === "selected") return node.localName === "option";
    if (name === "checked") return node.name === "session";
    if (name === "value") return node.matches("textarea, input:not([type=hidden]):not([type=range])") && node.value !== node.defaultValue;
    return false;
  };
  const keepTheirs = () => { Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, node) => !theirs(name, node); };

  // -- times -----------------------------------------------------------------------------------------------------
  const units = [[86400000, "d"], [3600000, "h"], [60000, "min"], [1000, "s"]];
  const ago = (then, now) => {
    const gap = Math.abs(now - then);
    for (const [at, [unit, name]] of units.entries()) {
      if (then < now && gap >= unit) return `${Math.floor(gap / unit)} ${name} ago`;
      // What is to come is rounded, as the server does it.
      const small = units[at + 1]?.[0] ?? 1;
      if (then >= now && Math.round(gap / small) * small >= unit) return `in ${Math.round(gap / unit)} ${name}`;
    }
    return "now";
  };
  // By the server's clock: the browser's own may be wrong.
  let skew = 0;
  const tick = () => {
    const now = Date.now() + skew;
    for (const e of $$("time[data-at]")) {
      const said = ago(Number(e.dataset.at), now);
      if (e.textContent !== said) e.textContent = said;
    }
  };

  // -- travelling through time ------------------------------------------------------------------------------------
  let wantedStep = null;
  let asking = false;
  const travel = () => $("#travel");
  const stepNow = () => Number(travel()?.value || 0);
  const showPlace = (step) => {
    for (const e of $$("[data-step]")) {
      if (Number(e.dataset.step) === step) e.setAttribute("aria-current", "step");
      else e.removeAttribute("aria-current");
    }
    const label = $("#travel-label");
    if (label) label.textContent = String(step);
    const cursor = $("#cursor");
    if (cursor) {
      const [low, high] = [Number(cursor.dataset.low), Number(cursor.dataset.high)];
      const x = `${high > low ? ((step - low) / (high - low)) * 100 : 0}%`;
      cursor.setAttribute("x1", x);
      cursor.setAttribute("x2", x);
    }
  };
  const go = async (step) => {
    const slider = travel();
    if (!slider) return;
    step = Math.min(Number(slider.max), Math.max(Number(slider.min), step));
    slider.value = step;
    showPlace(step);
    wantedStep = step;
    if (asking) return;
    asking = true;
    // One request at a time, always for the newest wish: dragging never queues up.
    while (wantedStep !== null) {
      const target = wantedStep;
      wantedStep = null;
      const at = $("#at");
      const query = new URLSearchParams(location.search);
      query.set("step", target);
      query.set("branch", slider.dataset.branch);
      if (at?.dataset.view) query.set("view", at.dataset.view);
      const began = performance.now();
      try {
        await htmx.ajax("GET", `/session/at?${query}&page=${$("#steps")?.dataset.page || ""}`, { target: "#at", swap: "outerHTML" });
        stale(false, "step");
      } catch {
        // The server could not be asked. The next step is asked for all the same.
        stale(true, "step");
      } finally {
        query.delete("page");
        history.replaceState(null, "", `/session?${query}`);
        document.documentElement.dataset.stepMs = Math.round(performance.now() - began);
      }
      showPlace(wantedStep ?? target);
    }
    asking = false;
    $("#steps [aria-current]")?.scrollIntoView({ block: "nearest" });
  };

  // -- keys ------------------------------------------------------------------------------------------------------
  const typing = (target) => target.matches?.("input:not([type=range]):not([type=checkbox]):not([type=radio]), textarea, select, [contenteditable]");
  const rows = () => $$("[data-row]").filter((e) => e.offsetParent !== null);
  const move = (by) => {
    const all = rows();
    if (!all.length) return false;
    const at = all.findIndex((e) => e === document.activeElement || e.contains(document.activeElement));
    const next = all[at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, at + by))];
    const focus = next.matches("a, button") ? next : $("a, button", next) || next;
    focus.focus();
    next.scrollIntoView({ block: "nearest" });
    return true;
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape" && typing(event.target)) { event.target.blur(); return; }
    if (typing(event.target)) return;
    const slider = travel();
    const done = () => event.preventDefault();
    switch (event.key) {
      case "j": if (slider ? (go(stepNow() - 1), true) : move(1)) done(); break;
      case "k": if (slider ? (go(stepNow() + 1), true) : move(-1)) done(); break;
      case "ArrowLeft": if (slider) { go(stepNow() - (event.shiftKey ? 10 : 1)); done(); } break;
      case "ArrowRight": if (slider) { go(stepNow() + (event.shiftKey ? 10 : 1)); done(); } break;
      case "Home": if (slider) { go(Number(slider.min)); done(); } break;
      case "End": if (slider) { go(Number(slider.max)); done(); } break;
      case "/": { const search = $("#search"); if (search) { search.focus(); search.select(); done(); } else location.href = "/?focus=1"; break; }
      case "?": { const help = $("#help"); if (help.open) help.close(); else help.showModal(); done(); break; }
      case "t": nextTheme(); break;
      case "b": { const link = $("#branch-here"); if (link) { link.click(); done(); } break; }
      default: {
        const link = /^[1-9]$/.test(event.key) && $$("nav[aria-label=Pages] a")[Number(event.key) - 1];
        if (link) { link.click(); done(); }
      }
    }
  });

  // -- one ear for the rest ----------------------------------------------------------------------------------------
  document.addEventListener("click", (event) => {
    const target = event.target.closest?.("#theme, #help-open, [data-goto], [data-select-all], [data-close]");
    if (!target) return;
    if (target.id === "theme") nextTheme();
    else if (target.id === "help-open") $("#help").showModal();
    else if ("close" in target.dataset) target.closest("dialog").close();
    else if ("goto" in target.dataset && travel()) { event.preventDefault(); go(Number(target.dataset.goto)); }
    else if ("selectAll" in target.dataset) {
      for (const box of $$("input[name=session]")) box.checked = target.checked;
      countSelected();
    }
  });
  document.addEventListener("input", (event) => {
    if (event.target.id === "travel") go(Number(event.target.value));
    if (event.target.name === "session") countSelected();
  });
  const countSelected = () => {
    const bar = $("#bulk");
    if (!bar) return;
    const count = $$("input[name=session]:checked").length;
    $("#bulk-count").textContent = count ? `${count} selected` : bar.dataset.all;
  };

  // A branch that is shorter than others has a shorter slider: the thumb stands below the cursor of the picture.
  const fitSlider = () => {
    const slider = travel();
    if (!slider) return;
    const [steps, all] = [Number(slider.max) - 1, Number(slider.dataset.scale) - 1];
    slider.style.width = all > 0 ? `calc(16px + (100% - 16px) * ${steps / all})` : "";
  };

  const settle = () => { listen(); tick(); showTheme(); countSelected(); fitSlider(); };
  document.addEventListener("DOMContentLoaded", () => {
    keepTheirs();
    skew = Number(document.body.dataset.now) - Date.now();
    settle();
    setInterval(tick, 1000);
    if (new URLSearchParams(location.search).has("focus")) $("#search")?.focus();
  });
  document.addEventListener("htmx:afterSettle", settle);
  document.addEventListener("htmx:configRequest", (event) => {
    const token = $("meta[name=form-token]")?.content;
    if (token && event.detail.verb !== "get") event.detail.headers["X-Perdure-Form"] = token;
    const slider = travel();
    if (event.detail.elt.id === "top" && slider) {
      // Who looks at the newest step goes along with the session; who looks at the past stays there.
      event.detail.parameters.set("step", slider.value);
      event.detail.parameters.set("follow", slider.value === slider.max ? "1" : "0");
      event.detail.parameters.set("view", $("#at")?.dataset.view || "chat");
    }
  });
  // What the server says about an error is shown where the answer would have been.
  document.addEventListener("htmx:beforeSwap", (event) => {
    const { xhr: { status }, requestConfig: { elt, triggeringEvent } } = event.detail;
    if (status < 400) { if (source?.readyState === EventSource.OPEN) stale(false); return; }
    event.detail.isError = false;
    // News that cannot be had now do not replace what is shown: it would never be asked for again.
    const later = triggeringEvent?.type === "changed" && status !== 404 && status !== 410;
    event.detail.shouldSwap = !later;
    if (later) { stale(true); setTimeout(() => { if (elt.isConnected) refresh(elt); }, 2000); }
  });
  document.addEventListener("visibilitychange", listen);
})();
