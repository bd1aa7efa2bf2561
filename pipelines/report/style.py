"""Looks and behaviour of the report page: its style sheet and its script, as text to be inlined."""

from __future__ import annotations

from gridlaw.pipelines.figures.colours import DARK, LIGHT


def _variables(colours: dict[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in colours.items())


_SHEET = """
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,
 "Noto Sans","Liberation Sans",sans-serif;overflow-wrap:anywhere}
main,header,footer{max-width:1180px;margin:0 auto;padding:0 24px}
a{color:var(--link)}
h1{font-size:2rem;line-height:1.2;margin:0 0 4px;letter-spacing:-.01em}
h2{font-size:1.35rem;line-height:1.3;margin:56px 0 8px;padding-top:14px;border-top:2px solid var(--ink)}
h3{font-size:1.05rem;margin:30px 0 6px}
p{margin:6px 0 12px;max-width:76ch}
.kicker{color:var(--muted);margin:36px 0 4px;font-size:.9rem}
.muted,.note{color:var(--muted)} .note{font-size:.9rem}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:0 28px;margin:22px 0 0;padding:0}
.facts div{border-top:1px solid var(--line);padding:10px 0 6px}
.facts dt{color:var(--muted);font-size:.85rem}
.facts dd{margin:0;font-size:1.35rem;font-weight:600;font-variant-numeric:tabular-nums;line-height:1.3}
.facts dd{overflow-wrap:normal}
.facts small{display:block;font-size:.8rem;font-weight:400;color:var(--muted)}
.short{margin:8px 0 12px;padding-left:1.2em;max-width:82ch} .short li{margin:5px 0}
.short li.bad::marker{color:var(--bad)} .short li.bad{color:var(--bad);font-weight:600}
.short li.warn{color:var(--warn);font-weight:600}
nav ul{display:flex;flex-wrap:wrap;gap:4px 18px;list-style:none;margin:18px 0 0;padding:0;font-size:.92rem}
.legend{display:flex;flex-wrap:wrap;gap:6px 8px;align-items:center;margin:10px 0 4px;font-size:.88rem}
.legend .name{color:var(--muted);margin-right:2px}
.legend button{font:inherit;color:inherit;background:var(--tint);border:1px solid var(--line);border-radius:4px;
 padding:3px 9px;cursor:pointer;display:inline-flex;gap:6px;align-items:center}
.legend button[aria-pressed=false]{opacity:.55;text-decoration:line-through}
.legend button:focus-visible,.scroll:focus-visible,a:focus-visible,summary:focus-visible{outline:3px solid var(--link);
 outline-offset:2px}
.legend svg,.key svg{width:13px;height:13px;overflow:visible;flex:none}
.key{color:var(--muted);font-size:.88rem;margin:0 0 6px;max-width:none}
.panels{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(330px,100%),1fr));gap:14px 22px;margin:6px 0 8px}
.panels.few{grid-template-columns:repeat(auto-fill,minmax(min(480px,100%),1fr))}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(430px,100%),1fr));gap:14px 28px}
figure{margin:0;min-width:0;break-inside:avoid}
figcaption{font-weight:600;font-size:.95rem;margin:6px 0 2px}
figcaption small{font-weight:400;color:var(--muted);font-size:.85rem}
.plot{position:relative;overflow:hidden}
.plot .wait{color:var(--muted);font-size:.9rem;padding:16px 0}
.scroll{overflow-x:auto;margin:8px 0 18px;max-width:100%;background:
 linear-gradient(to left,var(--paper) 40%,transparent) right/44px 100% no-repeat local,
 linear-gradient(to left,var(--line),transparent) right/14px 100% no-repeat scroll}
table{border-collapse:collapse;font-size:.88rem;font-variant-numeric:tabular-nums;width:100%}
caption{text-align:left;color:var(--muted);padding:0 0 6px;font-size:.9rem}
th,td{padding:5px 14px 5px 0;text-align:right;vertical-align:baseline;border-bottom:1px solid var(--grid);
 white-space:nowrap;overflow-wrap:normal}
thead td{border:0}
caption span{position:sticky;left:0;display:inline-block;max-width:min(76ch,calc(100vw - 48px))}
thead th{border-bottom:1.5px solid var(--ink);vertical-align:bottom;font-weight:600}
@media (min-width:601px){wbr{display:none} thead th{white-space:normal}}
thead .group{text-align:center;border-bottom:1px solid var(--line)}
th.text,td.text{text-align:left} td.wrap{white-space:normal;min-width:15rem;overflow-wrap:break-word}
tbody th,thead th:first-child{text-align:left;font-weight:600}
.sticky tbody th,.sticky thead th:first-child{position:sticky;left:0;background:var(--paper);z-index:1}
sup{line-height:0;font-size:.75em}
td small{color:var(--muted);font-size:.92em}
tr.last td,tr.last th{border-bottom-color:var(--line)}
tr.total td,tr.total th{font-weight:600;border-top:1px solid var(--ink);border-bottom:0}
.good{color:var(--good)} .bad{color:var(--bad)} .warn{color:var(--warn)} .strong{font-weight:600}
.bars{margin:12px 0 16px;max-width:640px;font-size:.9rem}
.bars .row{display:grid;grid-template-columns:10.5rem 1fr;gap:10px;align-items:center;margin:5px 0}
.bars .bar{height:18px;flex:none;background:var(--arch-0);min-width:2px}
.bars .bar.ghost{background:none;border:1.5px solid var(--muted)}
.bars .value{font-variant-numeric:tabular-nums;white-space:nowrap}
.bars .row>div{display:flex;flex-wrap:wrap;gap:0 8px;align-items:center;min-width:0}
details{margin:8px 0} summary{cursor:pointer;font-weight:600}
pre{background:var(--tint);padding:12px 14px;overflow-x:auto;font-size:.82rem;line-height:1.45;white-space:pre}
dl.plain{display:grid;grid-template-columns:max-content 1fr;gap:3px 18px;font-size:.92rem;margin:8px 0 16px}
dl.plain dt{color:var(--muted)} dl.plain dd{margin:0;min-width:0}
footer{margin-top:56px;padding-top:12px;padding-bottom:40px;color:var(--muted);font-size:.85rem}
.hidden{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap}
@media (max-width:600px){
 main,header,footer{padding:0 16px} h1{font-size:1.6rem} h2{margin-top:42px}
 .facts{grid-template-columns:1fr 1fr;gap:0 18px} .bars .row{grid-template-columns:1fr;gap:2px}
 dl.plain{grid-template-columns:1fr} dl.plain dd{margin-bottom:6px}
 .sticky tbody th,.sticky thead th:first-child{min-width:7.6rem;max-width:45vw;white-space:normal;
  overflow-wrap:break-word;padding-right:10px}
}
@media print{
 body{font-size:10.5pt} main,header,footer{max-width:none;padding:0}
 nav,.legend button[aria-pressed=false]{display:none}
 h2{break-after:avoid;margin-top:28px} h3,figcaption,caption{break-after:avoid} .scroll{overflow:visible}
 table{font-size:7.4pt} th,td{padding:2px 6px 2px 0;white-space:normal;overflow-wrap:normal} tr{break-inside:avoid}
 td.wrap{min-width:8rem} thead{display:table-header-group}
 .sticky tbody th,.sticky thead th:first-child{position:static}
 .panels,.panels.few{grid-template-columns:repeat(2,1fr)}
 .pair{grid-template-columns:repeat(2,1fr)} @page{margin:14mm}
 .facts{grid-template-columns:repeat(5,1fr);gap:0 14px} .facts dd{font-size:1.05rem}
}
"""

SHEET = (
    f":root{{color-scheme:light dark;{_variables(LIGHT)}}}"
    f"@media screen and (prefers-color-scheme:dark){{:root{{{_variables(DARK)}}}}}" + _SHEET
)

# plotly.js travels compressed (a third of its size) and is unpacked by the browser; the tables need no script at all.
SCRIPT = r"""
(async () => {
"use strict";
const root = document.documentElement, plots = [...document.querySelectorAll(".plot")];
const figures = JSON.parse(document.getElementById("figures").textContent);
const hidden = new Set();
const say = text => document.querySelectorAll(".plot .wait").forEach(note => { note.textContent = text; });
const colour = name => {
  const [key, alpha] = name.slice(4).split("/");
  const value = getComputedStyle(root).getPropertyValue(key).trim();
  if (!alpha) return value;
  const part = at => parseInt(value.slice(at, at + 2), 16);
  return `rgba(${part(1)},${part(3)},${part(5)},${alpha})`;
};
const filled = item => {
  if (typeof item === "string") return item.startsWith("var:") ? colour(item) : item;
  if (Array.isArray(item)) return item.map(filled);
  if (item && typeof item === "object")
    return Object.fromEntries(Object.entries(item).map(([key, value]) =>
      [key, ["text", "ticktext", "meta", "name"].includes(key) ? value : filled(value)]));
  return item;
};
const coarse = matchMedia("(pointer: coarse)").matches;
const config = {responsive: true, displaylogo: false, displayModeBar: false, scrollZoom: false,
                doubleClick: "reset", showTips: false};
const draw = async (width) => {
  for (const plot of plots) {
    const figure = figures[plot.dataset.figure];
    const traces = filled(figure.traces);
    traces.forEach(trace => { trace.visible = !hidden.has(plot.dataset.legend + "/" + trace.meta); });
    const layout = filled(figure.layout);
    layout.dragmode = coarse ? false : "zoom";
    if (width) layout.width = width(plot); else layout.autosize = true;
    const note = plot.querySelector(".wait");
    if (note) note.remove();
    const drawn = Plotly.react(plot, traces, layout, config);
    if (!width) await drawn;
  }
};
try {
  const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent.trim()), c => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
} catch (error) {
  say("This browser cannot unpack the drawings; every number is in the tables.");
  root.dataset.drawn = "no";
  return;
}
document.querySelectorAll(".legend button").forEach(button => button.addEventListener("click", () => {
  const key = button.dataset.legend + "/" + button.dataset.key, off = !hidden.has(key);
  off ? hidden.add(key) : hidden.delete(key);
  document.querySelectorAll(".legend button").forEach(other => {
    if (other.dataset.legend === button.dataset.legend && other.dataset.key === button.dataset.key)
      other.setAttribute("aria-pressed", String(!off));
  });
  draw();
}));
await draw();
root.dataset.drawn = "yes";
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw());
addEventListener("beforeprint", () => draw(() => 320));
addEventListener("afterprint", () => draw());
})();
"""
