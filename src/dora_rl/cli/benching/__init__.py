"""What `dora bench control`, `dora bench schedules` and `dora bench peer` do.

fleet       the control plane at three sizes, part by part
schedules   one recipe under every schedule, one run after the other, measured from their logs
predicting  the simulator with costs that were measured, beside what was measured
peers       the same training by TRL, beside ours
"""
