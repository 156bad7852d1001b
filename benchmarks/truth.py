"""proto"""
import sys,time
from truth_sites import *
for name in (sys.argv[1:] or truths()):
    t=time.process_time(); h=Held(name); 
    print('=====',name,round(time.process_time()-t,1),'s', h.audit.document.coverage)
    for p in h.patterns():
        print(f"{p.kind[:9]:9} {'U' if p.in_union else '-'} {p.name[:60]:60} {p.sites:5} rec {p.recall:5.2f} {dict(p.states)} {dict(p.rules)} {p.ours_us:.0f}/{p.true_us:.0f}")
        for r,n in p.reasons.most_common(3): print('        ',n,r)
    listed={n for s in h.true_sites().values() for x in s for n in x}
    print('  -- findings')
    for f in h.audit.findings:
        us=[s for s in h.sites if s.finding is f]
        un=sum(len(s.kernels-listed) for s in us)
        print(f"   {f.rule} {f.phase[:4]} {f.sites}x{f.kernels/f.sites:.1f} unlisted {un}/{f.kernels} {f.device_us:.0f}us {' '.join(o.replace('aten.','') for o in f.ops)[:110]} {f.module_class} {f.source.function if f.source else ''}")
