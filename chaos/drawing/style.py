"""The style sheet of a report: for light and dark, and for print."""

from __future__ import annotations

STYLE = """
:root{color-scheme:light dark;--paper:#fcfcfb;--ink:#1c1c1a;--soft:#63625d;--line:#e2e1db;
--local:#1f6feb;--peer:#b35900;--miss:#c9c7bf;--fault:#b3261e;--held:#1a7f4b;--amber:#c98a00;
--violet:#7a4fb5;--gone:#8a8880;--ok:#8fc7a8}
@media(prefers-color-scheme:dark){:root{--paper:#171716;--ink:#ecebe6;--soft:#a3a19a;--line:#34332f;
--local:#6ea8ff;--peer:#f0a04b;--miss:#55534c;--fault:#ff7b72;--held:#56d089;--amber:#e8b33c;
--violet:#b794e8;--gone:#76746c;--ok:#2f6b4b}}
body{font:14px/1.5 system-ui,sans-serif;background:var(--paper);color:var(--ink);max-width:1080px;
margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.1rem;margin:2rem 0 .3rem}p{margin:.2rem 0 .6rem;color:var(--soft)}
a{color:var(--local)}code{font-size:12px;overflow-wrap:anywhere}
table{border-collapse:collapse;width:100%;font-size:13px}
th{text-align:left;font-weight:600;color:var(--soft)}
th,td{padding:.25rem .5rem;border-bottom:1px solid var(--line);vertical-align:top}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.mark{font-size:12px;font-weight:600;white-space:nowrap}
.mark.held{color:var(--held)}.mark.broken{color:var(--fault)}.mark.off{color:var(--soft)}
figure{margin:.5rem 0}svg{width:100%;height:auto;display:block}
svg.course{width:180px}
svg text{font:11px system-ui,sans-serif;fill:var(--soft)}svg text.named{fill:var(--ink)}
svg text.inside{fill:var(--paper);font-weight:600}
.grid{stroke:var(--line);stroke-width:1}.band{fill:var(--fault);opacity:.07}.fault{fill:var(--fault)}
polyline,line.local,line.peer{fill:none;stroke-width:1.8;stroke-linejoin:round;stroke-linecap:round}
polyline.local,line.local{stroke:var(--local)}polyline.peer,line.peer{stroke:var(--peer)}
polyline.p99,line.p99{stroke-width:1.2;stroke-dasharray:3 3}
.tier.local{fill:var(--local)}.tier.peer{fill:var(--peer)}.tier.miss{fill:var(--miss)}
.state{fill:var(--gone)}.state.closed{fill:var(--ok)}.state.half_open{fill:var(--amber)}
.state.open{fill:var(--fault)}.state.suspect{fill:var(--violet);opacity:.6}
.state.down{fill:var(--violet)}
details{margin:.3rem 0 0}summary{cursor:pointer;color:var(--soft);font-size:13px}
@media print{section{break-inside:avoid}}
"""
