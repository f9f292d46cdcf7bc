"""Dense FP8 layers through FlashInfer's b12x kernel."""
