"""Training in several processes: what each of them sees, adds up, tells and writes."""
