
// A research run: cards open in a panel, the graph can be searched, moved and zoomed.
document.addEventListener("DOMContentLoaded", () => {
  const panel = document.querySelector("#panel");
  if (!panel) return;
  const [title, body, back] = ["#panel-title", "#panel-body", "#panel-back"].map((name) => panel.querySelector(name));
  const graph = document.querySelector("#graph");
  let opener = null;
  let shown = [];

  const ids = (element) => (element.dataset.evidence || "").split(" ").filter(Boolean);
  const copy = (id) => {
    const card = document.getElementById(id);
    if (!card) return null;
    const twin = card.cloneNode(true);
    twin.removeAttribute("id");
    return twin;
  };

  // What cites the same evidence in the other graph is marked.
  const light = (evidence) => {
    document.querySelectorAll(".lit").forEach((element) => element.classList.remove("lit"));
    if (!evidence.length) return;
    document.querySelectorAll("svg .link, svg .leaf").forEach((element) => {
      if (ids(element).some((id) => evidence.includes(id))) element.classList.add("lit");
    });
  };

  const fill = (view) => {
    title.textContent = view.title;
    const cards = view.cards.map(copy).filter(Boolean);
    // The panel's title is that of the first card.
    if (cards.length && view.titled) cards[0].querySelector("h3")?.remove();
    body.replaceChildren(...cards);
    body.scrollTop = 0;
    back.hidden = shown.length < 2;
    light(view.evidence);
  };

  const view = (link) => {
    const target = link.hash.slice(1) || (link.getAttribute("href") || "").slice(1);
    const evidence = ids(link);
    const card = document.getElementById(target);
    const own = card && card.classList.contains("card") && !target.startsWith("evidence-");
    const others = evidence.map((id) => `evidence-${id}`);
    const name = own ? card.querySelector("h3").textContent : link.dataset.title || link.getAttribute("aria-label") || "Evidence";
    return { title: name, titled: own, cards: own ? [target, ...others] : others, evidence };
  };

  const open = (link) => {
    const next = view(link);
    if (!next.cards.length) return false;
    if (panel.hidden) { opener = link; shown = []; }
    shown.push(next);
    panel.hidden = false;
    fill(next);
    panel.focus({ preventScroll: true });
    return true;
  };

  const close = () => {
    panel.hidden = true;
    light([]);
    if (opener) opener.focus({ preventScroll: true });
    opener = null;
  };

  panel.querySelector("#panel-close").addEventListener("click", close);
  back.addEventListener("click", () => { shown.pop(); fill(shown[shown.length - 1]); panel.focus(); });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && !panel.hidden) close(); });

  let dragged = false;
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-evidence], a[data-open], a[data-node]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    if (dragged) { event.preventDefault(); return; }
    // SVG links have no hash property of their own.
    if (!link.hash) Object.defineProperty(link, "hash", { value: link.getAttribute("href"), configurable: true });
    if (open(link)) event.preventDefault();
  });

  // A card that an address leads to is inside of something that may be closed.
  const reveal = () => {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const holder = target && target.closest("details");
    if (holder && !holder.open) { holder.open = true; target.scrollIntoView(); }
  };
  window.addEventListener("hashchange", reveal);
  reveal();

  if (!graph) return;
  document.querySelector(".tools").hidden = false;
  const pills = [...graph.querySelectorAll("a.pill")];
  const ties = [...graph.querySelectorAll("[data-u]")];

  const aim = (chosen) => {
    graph.classList.toggle("aimed", chosen !== null);
    const near = new Set(chosen || []);
    ties.forEach((tie) => {
      const on = chosen !== null && (chosen.includes(tie.dataset.u) || chosen.includes(tie.dataset.v));
      tie.classList.toggle("near", on);
      if (on && tie.classList.contains("link")) { near.add(tie.dataset.u); near.add(tie.dataset.v); }
    });
    pills.forEach((pill) => pill.classList.toggle("near", near.has(pill.dataset.node)));
  };

  const find = document.querySelector("#find-entity");
  const found = document.querySelector("#found");
  const search = () => {
    const wanted = find.value.trim().toLowerCase();
    const matches = wanted ? pills.filter((pill) => pill.dataset.name.toLowerCase().includes(wanted)) : [];
    found.textContent = wanted ? `${matches.length} found` : "";
    aim(wanted ? matches.map((pill) => pill.dataset.node) : null);
    return matches;
  };
  find.addEventListener("input", search);
  find.addEventListener("keydown", (event) => {
    if (event.key === "Enter") { const [first] = search(); if (first) first.focus(); }
  });
  pills.forEach((pill) => {
    for (const event of ["pointerenter", "focus"]) pill.addEventListener(event, () => aim([pill.dataset.node]));
    for (const event of ["pointerleave", "blur"]) pill.addEventListener(event, search);
  });
  document.querySelector("#show-gaps").addEventListener("change", (event) =>
    graph.querySelector(".gaps").classList.toggle("off", !event.target.checked));

  // The view box is what is seen: buttons and Ctrl with the wheel zoom, dragging moves, and so do the arrow keys.
  const whole = graph.viewBox.baseVal;
  const all = [whole.x, whole.y, whole.width, whole.height];
  let box = [...all];
  const look = () => {
    box[0] = Math.min(Math.max(box[0], all[0]), all[0] + all[2] - box[2]);
    box[1] = Math.min(Math.max(box[1], all[1]), all[1] + all[3] - box[3]);
    graph.setAttribute("viewBox", box.map((value) => value.toFixed(1)).join(" "));
  };
  const zoom = (factor, x = box[0] + box[2] / 2, y = box[1] + box[3] / 2) => {
    const width = Math.min(all[2], Math.max(all[2] / 8, box[2] * factor));
    const scale = width / box[2];
    box = [x - (x - box[0]) * scale, y - (y - box[1]) * scale, width, box[3] * scale];
    look();
  };
  const point = (event) => {
    const place = new DOMPoint(event.clientX, event.clientY).matrixTransform(graph.getScreenCTM().inverse());
    return [place.x, place.y];
  };
  document.querySelectorAll("[data-zoom]").forEach((button) => button.addEventListener("click", () => {
    if (button.dataset.zoom === "all") { box = [...all]; look(); } else zoom(button.dataset.zoom === "in" ? 0.7 : 1 / 0.7);
  }));
  graph.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoom(event.deltaY < 0 ? 0.85 : 1 / 0.85, ...point(event));
  }, { passive: false });
  let from = null;
  graph.addEventListener("pointerdown", (event) => {
    dragged = false;
    if (event.button === 0 && event.pointerType === "mouse") from = { x: event.clientX, y: event.clientY, box: [...box] };
  });
  window.addEventListener("pointermove", (event) => {
    if (!from) return;
    const moved = [event.clientX - from.x, event.clientY - from.y];
    if (!dragged && Math.hypot(...moved) < 5) return;
    dragged = true;
    graph.classList.add("moving");
    const scale = box[2] / graph.clientWidth;
    box = [from.box[0] - moved[0] * scale, from.box[1] - moved[1] * scale, box[2], box[3]];
    look();
  });
  window.addEventListener("pointerup", () => { from = null; graph.classList.remove("moving"); });
  // A link would be dragged as a link.
  graph.addEventListener("dragstart", (event) => event.preventDefault());
  graph.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (step && box[2] < all[2]) { box[0] += step[0] * box[2] / 8; box[1] += step[1] * box[3] / 8; look(); event.preventDefault(); }
    if (event.key === "+") zoom(0.7);
    if (event.key === "-") zoom(1 / 0.7);
  });
});
