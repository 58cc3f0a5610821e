"""Where a training step's time and memory go: python -m pyllmc.profile

The engine's own events give a timeline of lanes and spans (record.py, spans.py), CUPTI the time of every
kernel (kernels.py, alignment.py), op_costs.py the work that each op has to do, ceilings.py what the device can
do at best. document.py holds what was measured as JSON, from which every picture can be drawn again.
"""
