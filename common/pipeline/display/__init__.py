"""Shows values to people: as short texts, images and tables. Describes and plots batches."""
