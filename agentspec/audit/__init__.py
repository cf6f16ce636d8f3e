"""Evidence for "lossless" on real models: recording, replay and calibration of exact classes."""
