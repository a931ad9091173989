
// ---- forms with a preview: the server renders it again while someone types

for (const form of document.querySelectorAll("form[data-preview]")) {
  let waiting = 0;
  let latest = 0;
  form.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(async () => {
      const own = (latest += 1);
      const fields = new URLSearchParams();
      for (const [name, value] of new FormData(form)) {
        if (name !== "csrf" && name !== "from" && typeof value === "string" && value.length < 2000) fields.append(name, value);
      }
      const target = document.getElementById(form.dataset.preview);
      try {
        const answer = await fetch(`${form.dataset.previewUrl ?? form.getAttribute("action")}?${fields}`, { credentials: "same-origin", headers: { accept: "text/html" } });
        if (!answer.ok || own !== latest || !target) return;
        const next = parse(await answer.text()).getElementById(form.dataset.preview);
        if (next) patch(target, next);
      } catch {
        // The button renders the preview without this script.
      }
    }, 250);
  });
}
