"""Plans for a running job: read (source), agreed on by all ranks (adoption), carried out (apply), and judged (judgement)."""
