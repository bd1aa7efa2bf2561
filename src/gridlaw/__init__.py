"""gridlaw: from a grid of training runs to a scaling law.

Imports nothing, so that reading a grid file or asking for help never loads torch.
The code is in ``gridlaw.platform``, ``gridlaw.modules`` and ``gridlaw.pipelines``.
"""
