// Shows /openapi.json, and sends requests by it. Text is only ever set as text, never as markup.
"use strict";

const METHODS = ["get", "put", "post", "delete", "patch"];

/** An element with these properties and children. */
function element(name, properties, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

/** What a `$ref` within the document points to; anything else is itself. */
function resolved(document, value) {
  for (let depth = 0; value && value.$ref && depth < 8; depth += 1) {
    const steps = value.$ref.replace(/^#\//, "").split("/");
    value = steps.reduce((at, step) => (at === undefined ? at : at[step]), document);
  }
  return value || {};
}

/** A value that a schema would take: its example, or one made of its required parts. */
function sample(document, schema, depth = 0) {
  const it = resolved(document, schema);
  if (it.example !== undefined) return it.example;
  if (it.examples && it.examples.length) return it.examples[0];
  if (it.default !== undefined) return it.default;
  if (it.const !== undefined) return it.const;
  const either = it.anyOf || it.oneOf || it.allOf;
  if (either && depth < 6) return sample(document, either[0], depth + 1);
  const kind = Array.isArray(it.type) ? it.type[0] : it.type;
  if (kind === "array") return depth < 6 && it.items ? [sample(document, it.items, depth + 1)] : [];
  if (kind === "object" || it.properties) {
    const made = {};
    for (const [name, part] of Object.entries(it.properties || {})) {
      if (depth < 6 && (it.required || []).includes(name)) made[name] = sample(document, part, depth + 1);
    }
    return made;
  }
  if (kind === "integer" || kind === "number") return it.minimum || 1;
  if (kind === "boolean") return true;
  return "";
}

/** A row for each property of a body. */
function properties(document, schema) {
  const it = resolved(document, schema);
  const rows = Object.entries(it.properties || {}).map(([name, part]) => {
    const kind = resolved(document, part);
    const needed = (it.required || []).includes(name) ? "required" : "";
    const type = Array.isArray(kind.type) ? kind.type.join(" or ") : kind.type || "";
    return element("tr", {},
      element("td", {}, element("code", { textContent: name })),
      element("td", { textContent: [type, needed].filter(Boolean).join(", ") }),
      element("td", { textContent: kind.description || "" }));
  });
  return rows.length ? element("table", {}, element("tbody", {}, ...rows)) : "";
}

/** One operation, and a form that sends it. */
function operation(document, path, method, it) {
  const content = resolved(document, it.requestBody).content || {};
  const [type, media] = Object.entries(content)[0] || [];
  const parameters = (it.parameters || []).map((parameter) => resolved(document, parameter));
  const fields = parameters.filter((each) => each.in === "query" || each.in === "header").map((each) => {
    const input = element("input", { autocomplete: "off" });
    input.dataset.name = each.name;
    input.dataset.place = each.in;
    return element("label", {}, `${each.name} (${each.in}) `, input);
  });
  const body = type ? element("textarea", {
    rows: 8, spellcheck: false, ariaLabel: "request body",
    value: JSON.stringify(sample(document, media.schema), null, 2),
  }) : "";
  const answer = element("pre", { hidden: true });
  const form = element("form", {}, ...fields, body, element("button", { textContent: "Send" }), answer);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(path, method, type, form, answer);
  });
  const answers = Object.entries(it.responses || {}).map(([status, response]) =>
    element("tr", {}, element("td", {}, element("code", { textContent: status })),
      element("td", { textContent: resolved(document, response).description || "" })));
  return element("details", {},
    element("summary", {}, element("code", { textContent: `${method.toUpperCase()} ${path}` }), ` ${it.summary || ""}`),
    element("p", { textContent: it.description || "" }),
    type ? properties(document, media.schema) : "",
    element("table", {}, element("tbody", {}, ...answers)), form);
}

/** Sends what a form says to this server, and shows what it answers. */
async function send(path, method, type, form, answer) {
  const headers = {};
  const token = document.getElementById("token").value;
  if (token) headers.Authorization = `Bearer ${token}`;
  const query = new URLSearchParams();
  for (const input of form.querySelectorAll("input")) {
    if (input.value && input.dataset.place === "header") headers[input.dataset.name] = input.value;
    if (input.value && input.dataset.place === "query") query.set(input.dataset.name, input.value);
  }
  const text = form.querySelector("textarea");
  if (text) headers["Content-Type"] = type;
  const target = query.size ? `${path}?${query}` : path;
  answer.hidden = false;
  try {
    const response = await fetch(target, { method: method.toUpperCase(), headers, body: text ? text.value : undefined });
    const said = await response.text();
    let shown = said;
    try { shown = JSON.stringify(JSON.parse(said), null, 2); } catch { /* not JSON: as it came */ }
    answer.textContent = `${response.status} ${response.statusText}\n\n${shown}`;
  } catch (error) {
    answer.textContent = String(error);
  }
}

async function show() {
  const place = document.getElementById("paths");
  try {
    const response = await fetch("openapi.json");
    const description = await response.json();
    document.getElementById("title").textContent = `${description.info.title} ${description.info.version}`;
    document.getElementById("about").textContent = description.info.description || "";
    const operations = Object.entries(description.paths).flatMap(([path, methods]) =>
      METHODS.filter((method) => methods[method]).map((method) => operation(description, path, method, methods[method])));
    place.replaceChildren(...operations);
  } catch (error) {
    place.textContent = `openapi.json cannot be read: ${error}`;
  }
}

show();
