"""Plotly figures of the read models. Each takes the colour scheme, ``light`` or ``dark``, and loads nothing.

=================================================  ============================================================
``waterfall.draw(Waterfall, scheme)``              :func:`dashboard.data.step.step_time`
``roofline.draw(Roofline, scheme)``                :func:`dashboard.data.roofline.roofline`
``timeline.draw(View, KernelTable, scheme, ...)``  :meth:`dashboard.data.timeline.Timeline.view`
``bars.draw(FixTiming, scheme)``                   :class:`auditor.fix_document.FixTiming`
``trend.draw(list[Trend], measure, scheme)``       :func:`dashboard.data.runs.trends`
``theme.template(scheme)``                         the plotly template of a scheme
=================================================  ============================================================
"""
