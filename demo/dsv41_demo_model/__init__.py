"""External model package of the demo: SGLang loads it by `SGLANG_EXTERNAL_MODEL_PACKAGE=dsv41_demo_model`."""
