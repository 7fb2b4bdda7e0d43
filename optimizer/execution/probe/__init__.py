"""The probe: runs a training script in the user's interpreter and writes down what it does.

The folder is copied into a run's scratch area as the package ``_torchopt_probe`` and started there with
``python -m _torchopt_probe SPEC.json``. It needs the standard library and torch only, Python >= 3.10 and torch >= 2.4,
and imports nothing else of ours.
"""
