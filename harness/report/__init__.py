"""Tables, figures and the generated parts of the pages, made from the CSV files under results/ alone."""
