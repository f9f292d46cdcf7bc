"""The fabric's checks, one module a subject. Importing this package registers them all."""
