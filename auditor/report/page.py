"""The frame of the HTML report: one file, nothing loaded, no scripts; the policy allows this one style sheet only."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256

from auditor.report.svg import escape

STYLE = """
:root { color-scheme: light dark;
  --bg: #ffffff; --soft: #f5f6f8; --line: #d9dce1; --text: #1c2128; --dim: #59636e; --link: #0757b8;
  --compute: #3f6fb5; --fusible: #d9730d; --rest: #8d96a1; --idle: #c9ced6; --whole: #4b5563; --after: #2a8a57;
  --warn: #8a4b00; --warnbg: #fff3e0; --error: #a31621; --errorbg: #fde8e9; --info: #0757b8; --infobg: #e7f0fc;
  --op: #eaf1fb; --opline: #3f6fb5; --fused: #e3f4ea; --fusedline: #2a8a57; --out: #fff0e0; --outline: #d9730d; }
@media (prefers-color-scheme: dark) { :root {
  --bg: #12161c; --soft: #1b2129; --line: #343c47; --text: #e4e8ee; --dim: #9aa5b1; --link: #79b4ff;
  --compute: #5b8fdc; --fusible: #f0933a; --rest: #7d8793; --idle: #424b57; --whole: #a4adb8; --after: #45b37c;
  --warn: #ffb968; --warnbg: #3a2710; --error: #ff8d95; --errorbg: #3d171b; --info: #79b4ff; --infobg: #14283f;
  --op: #1a2a40; --opline: #5b8fdc; --fused: #14331f; --fusedline: #45b37c; --out: #38240f; --outline: #f0933a; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--bg); color: var(--text); font: 15px/1.5 system-ui, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 28px 24px 60px; }
h1 { font-size: 25px; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 19px; margin: 36px 0 10px; }
h3 { font-size: 15px; margin: 0; display: inline; }
h4 { font-size: 13px; margin: 18px 0 6px; color: var(--dim); text-transform: uppercase; letter-spacing: .04em; }
p { margin: 6px 0; }
a { color: var(--link); }
code, pre, .mono { font: 13px/1.45 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
code { overflow-wrap: anywhere; }
td code, th code { overflow-wrap: break-word; }
pre { background: var(--soft); border: 1px solid var(--line); border-radius: 6px; padding: 10px 12px; overflow: auto;
  max-height: 420px; margin: 8px 0; }
.dim { color: var(--dim); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(165px, 1fr)); gap: 12px;
  margin: 20px 0 0; padding: 0; }
.tiles div { background: var(--soft); border: 1px solid var(--line); border-radius: 8px; padding: 12px 14px; }
.tiles dt { color: var(--dim); font-size: 13px; }
.tiles dd { margin: 0; font-size: 22px; font-weight: 600; white-space: nowrap; }
.tiles dd small { display: block; font-size: 12.5px; font-weight: 400; color: var(--dim); white-space: normal; }
.scroll { overflow: auto; border: 1px solid var(--line); border-radius: 8px; }
.scroll:focus-visible, summary:focus-visible, a:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
caption { text-align: left; color: var(--dim); padding: 8px 12px; font-size: 13px; }
th, td { text-align: left; padding: 7px 12px; border-top: 1px solid var(--line); vertical-align: top; }
thead th { color: var(--dim); font-weight: 600; font-size: 13px; white-space: nowrap; }
tbody th { font-weight: 500; }
.num { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
details.finding { border: 1px solid var(--line); border-radius: 8px; margin: 12px 0; background: var(--bg); }
details.finding > summary { padding: 11px 14px; background: var(--soft); border-radius: 8px; cursor: pointer;
  overflow: hidden; overflow-wrap: anywhere; }
details.finding > div { padding: 6px 16px 16px; }
details.fold { margin: 12px 0 0; }
details.fold > summary { cursor: pointer; color: var(--link); }
.badge { display: inline-block; padding: 1px 8px; border-radius: 10px; font-size: 12.5px; font-weight: 600;
  margin-right: 6px; background: var(--infobg); color: var(--info); }
.badge.warning { background: var(--warnbg); color: var(--warn); }
.badge.error { background: var(--errorbg); color: var(--error); }
.right { float: right; color: var(--dim); font-variant-numeric: tabular-nums; }
dl.facts { display: grid; grid-template-columns: max-content 1fr; gap: 3px 18px; margin: 10px 0; }
dl.facts dt { color: var(--dim); }
dl.facts dd { margin: 0; }
.pair { display: flex; flex-wrap: wrap; gap: 16px; align-items: flex-start; }
figure { margin: 0; min-width: 0; flex: 1 1 300px; }
figure.before { flex-grow: 1.6; }
.stacked figure { flex-basis: 100%; }
figcaption { font-size: 13px; color: var(--dim); margin-bottom: 5px; }
figure .scroll { max-height: 640px; background: var(--bg); }
svg { display: block; }
svg.waterfall { max-width: 100%; min-width: 620px; height: auto; }
.scroll.bare { border: 0; border-radius: 0; }
svg.graph { margin: 0 auto; }
svg text { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: var(--text); }
svg.waterfall text { font-family: system-ui, "Segoe UI", Roboto, sans-serif; font-size: 13.5px; }
svg.waterfall .value { font-variant-numeric: tabular-nums; }
.guide { stroke: var(--line); stroke-width: 1; }
.bar.whole { fill: var(--whole); } .bar.compute { fill: var(--compute); } .bar.rest { fill: var(--rest); }
.bar.fusible { fill: var(--fusible); } .bar.collective { fill: var(--link); }
.bar.idle { fill: var(--idle); } .bar.after { fill: var(--after); }
.node .name { font-size: 12px; font-weight: 600; } .node .line { font-size: 10.5px; fill: var(--dim); }
.node rect { fill: var(--soft); stroke: var(--rest); stroke-width: 1; }
.node.op rect { fill: var(--op); stroke: var(--opline); }
.node.fused rect { fill: var(--fused); stroke: var(--fusedline); stroke-width: 2; }
.node.output rect { fill: var(--out); stroke: var(--outline); stroke-width: 1.5; }
.edge .wire { fill: none; stroke: var(--rest); stroke-width: 1.3; } .edge .head { fill: var(--rest); }
.edge.outside .wire { stroke: var(--outline); stroke-width: 2; } .edge.outside .head { fill: var(--outline); }
.tag { font-size: 10px; fill: var(--dim); }
.behind { fill: var(--bg); }
.meter { display: block; width: 110px; height: 6px; margin: 4px 0 0 auto; }
.meter .all { fill: var(--line); } .meter .part { fill: var(--fusible); }
ul.plain { padding-left: 20px; margin: 8px 0; }
@media print { .scroll, pre, figure .scroll { max-height: none; overflow: visible; } }
@media (max-width: 640px) { main { padding: 18px 12px; } .right { float: none; display: block; }
  dl.facts { grid-template-columns: 1fr; }
  dl.facts dd { margin-bottom: 6px; } }
"""


def wrap(title: str, body: str) -> str:
    """A complete document around ``body``; ``title`` is escaped here."""
    digest = b64encode(sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )
